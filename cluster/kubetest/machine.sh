#!/bin/sh
# Furnishes a machine that is network, mount, PID, UTS and IPC namespaces, and holds it until its input ends:
# machine.sh NAME DIR. DIR keeps what the machine writes.
set -eu
name=$1 dir=$2
hostname "$name"
mount --make-rshared /
mkdir "$dir/cgroup"
mount --rbind /sys/fs/cgroup "$dir/cgroup"
mount -t sysfs none /sys
mount --rbind "$dir/cgroup" /sys/fs/cgroup
mount -t proc none /proc

# What kubelet would set for all of the host is as it wants it, for this machine's eyes.
tunable() {
	mkdir -p "$dir/tunables"
	echo "$2" >"$dir/tunables/$(basename "$1")"
	mount --bind "$dir/tunables/$(basename "$1")" "/proc/sys/$1"
}
tunable vm/overcommit_memory 1
tunable vm/panic_on_oom 0
tunable kernel/panic 10
tunable kernel/panic_on_oops 1
tunable kernel/keys/root_maxkeys 1000000
tunable kernel/keys/root_maxbytes 25000000

for top in /etc /opt /var; do
	mkdir -p "$dir$top" "$dir/work$top"
	mount -t overlay -o "lowerdir=$top,upperdir=$dir$top,workdir=$dir/work$top" none $top
done
rm -rf /etc/cni /opt/cni /var/lib/cni /var/lib/kubelet
mkdir -p /etc/cni/net.d /opt/cni/bin /var/lib/kubelet
echo "nameserver 192.0.2.254" >/etc/resolv.conf
mount -t tmpfs none /run
mkdir -p /run/netns /run/lock

ip link set lo up
sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 # as kubeadm demands; containers cannot write it
echo ready
exec cat
