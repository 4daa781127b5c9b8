# boot.sh DIR: the first process of a throw-away host, in namespaces of its own, becomes systemd. The host has this machine's files,
# and what DIR/upper changes of them, which outlives a shutdown; of the machine's own settings of units it has none.
set -eu
dir=$1 root=$1/root
mkdir -p "$dir/work" "$dir/units" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" host "$root"
mount --bind "$dir/units" "$root/etc/systemd/system"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$root/dev"
for file in null zero full random urandom tty; do
	: >"$root/dev/$file"
	mount --bind "/dev/$file" "$root/dev/$file"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for at in dev/shm run tmp; do mount -t tmpfs -o mode=755 "$at" "$root/$at"; done
chmod 1777 "$root/tmp"
# The settings of the kernel are the machine's, but for those of the network.
cat /proc/sys/kernel/random/uuid >"$root/run/boot_id"
mount --bind "$root/run/boot_id" "$root/proc/sys/kernel/random/boot_id"
[ ! -e "$root/proc/sysrq-trigger" ] || mount --bind /dev/null "$root/proc/sysrq-trigger"
for at in proc/sys proc/sys/net sys; do mount --rbind "$root/$at" "$root/$at"; done
for at in proc/sys sys; do mount -o remount,bind,ro "$root/$at"; done
cd "$root"
mkdir -p old
pivot_root . old
umount -l old
mount --make-rshared / # as systemd does, where it is not in a container
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target \
	--show-status=no --log-target=console --log-level=notice --default-standard-error=journal
