# A node of a cluster of two: a throw-away host. In $1, NAME/config.json are the bundles of containers, root is the image,
# and $2 is an API server. Ends at the first thing that is not as it should be.
dir=$1 api=$2
fairlead=$dir/root/usr/bin/fairlead
ip link set lo up
ip link add eth0 type veth peer name wire
ip link set eth0 up
ip link set wire up
ip addr add 192.0.2.1/24 dev eth0
mount -t tmpfs cgroup /sys/fs/cgroup
mkdir -p /opt/cni/bin /etc/cni/net.d /var/lib/cni /run/cni /run/fairlead /run/netns "$dir/account" # DirectoryOrCreate
mount --bind /run/netns /run/netns
mount --make-shared /run/netns # as all mounts are on a node with systemd
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 # as kubeadm demands; containers cannot write it
sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1 # as many distributions have it
oci() { crun --root /run/crun --cgroup-manager=disabled "$@"; }
container() { # NAME: runs that container to its end, in a root of its own
	mkdir -p "$dir/$1/rootfs"
	cp -al "$dir/root/usr" "$dir/$1/rootfs"
	timeout -k 1 300 crun --root /run/crun --cgroup-manager=disabled run --bundle "$dir/$1" "$1"
}
not() { # COMMAND: the shell does not end at a failing !
	if eval "$1"; then return 1; fi
}
said() { echo "== $*"; }
within() { # COMMAND: is true before long
	for _ in $(seq 1200); do
		! eval "$1" || return 0
		sleep 0.1
	done
	return 1
}
state() {
	ip -br link
	ip addr show scope global | grep inet
	ip route show table all proto 118
	nft list sets
	find /etc/cni /run/fairlead /var/lib/cni /opt/cni -type f
}
ready() { cmp -s /etc/cni/net.d/10-fairlead.conflist "$dir/cluster/10-fairlead.conflist"; }
whole() {
	ready && test -s /run/fairlead/cluster/pods.json && test -s /var/lib/cni/fairlead/cluster/pods.json &&
		test -n "$(ip route show 10.244.2.0/24)" && test -n "$(ip -6 route show fd00:2::/64)" &&
		nft list sets | grep -q 10.244.2.0/24
}

FAIRLEAD_TEST_API=$dir/account "$api" &
within 'test -s "$dir/account/token"'
state >"$dir/before"

said 'agent without a capability or a mount'
for less in "$dir"/agent-without-*; do
	less=${less##*/}
	echo "-- $less"
	container "$less" >"$dir/$less.log" 2>&1 &
	within 'whole || ! kill -0 $! 2>/dev/null || grep -Eq "not permitted|read-only|no such file|denied" "$dir/$less.log"'
	oci kill "$less" KILL 2>/dev/null || true
	wait $! || true
	cat "$dir/$less.log"
	case $less in
	*run-cni | *NET_RAW) whole ;; # plugins do not see its locks, and no path is tested
	*) not whole ;;
	esac
	"$dir/root/usr/bin/fairlead-agent" --remove --conf "$dir/cluster/10-fairlead.conflist"
done

said IPv6 is off by default
sysctl -qw net.ipv6.conf.default.disable_ipv6=1
container agent >"$dir/off.log" 2>&1 &
within 'grep -q "set net.ipv6.conf.default.disable_ipv6=0 on the host" "$dir/off.log"' || { cat "$dir/off.log"; exit 1; }
not whole
oci kill agent KILL
wait $! || true
rm -r "$dir/agent/rootfs"
sysctl -qw net.ipv6.conf.default.disable_ipv6=0

said install and agent
container install
container agent >"$dir/agent.log" 2>&1 &
within whole || { cat "$dir/agent.log"; exit 1; }
CNI_PATH=/opt/cni/bin "$fairlead" cluster status || test $? = 3 # n2 answers nothing
test -n "$(find /run/cni -name '*lock*')"

said pod
ip netns add pod
CNI_PATH=/opt/cni/bin "$fairlead" add --exec pods pod >/dev/null
ping -nqc1 -W20 10.244.1.2
ip netns exec pod ping -nqi0.01 -W20 -c1000000 192.0.2.1 >"$dir/pings" & # until the end of the upgrade
pings=$!

said upgrade
oci kill agent TERM
within '! oci state agent >/dev/null 2>&1'
whole
ip route del 10.244.2.0/24 # what the next agent has to do
rm -r "$dir/agent/rootfs"
container agent >"$dir/agent.log" 2>&1 &
within whole || { cat "$dir/agent.log"; exit 1; }
kill -INT $pings
wait $pings
cat "$dir/pings"
grep -q ' 0% packet loss' "$dir/pings"

said repair, while no agent runs
oci kill agent TERM
within '! oci state agent >/dev/null 2>&1'
nft flush ruleset
container repair-without-run-fairlead
nft list sets | grep -q 10.244.1.0/24 # this node's, so the others are not known
not 'nft list sets | grep -q 10.244.2.0/24'
nft flush ruleset
container repair >"$dir/repair.log" 2>&1 &
within 'nft list sets | grep -q 10.244.2.0/24' || { cat "$dir/repair.log"; exit 1; }
oci kill repair TERM
within '! oci state repair >/dev/null 2>&1'

said remove
CNI_PATH=/opt/cni/bin "$fairlead" del --exec pods pod
rm -r "$dir/agent/rootfs"
container agent >"$dir/agent.log" 2>&1 &
within whole
within 'test -S /run/fairlead/cluster/pods.sock'
not 'container remove' # beside an agent
whole
oci kill agent TERM
within '! oci state agent >/dev/null 2>&1'
rm -r "$dir/remove/rootfs"
container remove
container uninstall
rm -rf /var/lib/cni/networks /var/lib/cni/results # of the pods
ip netns del pod
not 'nft list sets | grep -q elements' # the empty table stays until the boot
nft flush ruleset
state | diff "$dir/before" -
