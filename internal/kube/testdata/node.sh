# A node: a throw-away host. In $1, NAME/config.json are the bundles of containers, and root is the image. Ends at the first
# thing that is not as it should be.
dir=$1
fairlead=$dir/root/usr/bin/fairlead
ip link set lo up
mount -t tmpfs cgroup /sys/fs/cgroup
mkdir -p /opt/cni/bin /etc/cni/net.d /var/lib/cni /run/cni /run/netns # DirectoryOrCreate
mount --bind /run/netns /run/netns
mount --make-shared /run/netns # as all mounts are on a node with systemd
oci() { crun --root /run/crun --cgroup-manager=disabled "$@"; }
container() { # NAME: runs that container to its end, in a root of its own
	mkdir -p "$dir/$1/rootfs"
	cp -al "$dir/root/usr" "$dir/$1/rootfs"
	timeout -k 1 120 crun --root /run/crun --cgroup-manager=disabled run --bundle "$dir/$1" "$1"
}
attach() { # NETWORK NETNS PORT: what a runtime does for a pod
	ip netns add "${2##*/}"
	CNI_PATH=/opt/cni/bin CAP_ARGS='{"portMappings":[{"hostPort":'$3',"containerPort":80,"protocol":"tcp"}]}' \
		"$fairlead" add --exec "$1" "$2" >/dev/null
}
rules() { nft -s list ruleset | tr '{},' '\n' | sed 's/^[ \t]*//; s/[ \t]*$//' | sort; } # elements are in no order
complete() { rules | cmp -s - "$dir/before"; }
damage() {
	nft flush ruleset
	! complete
}
said() { echo "== $*"; }
within() { # COMMAND: is true before long
	for _ in $(seq 600); do
		! eval "$1" || return 0
		sleep 0.1
	done
	return 1
}

said install
container install
CNI_COMMAND=VERSION /opt/cni/bin/bridge | grep -q 1.1.0
cmp /etc/cni/net.d/10-fairlead.conflist "$dir/network/10-fairlead.conflist"
rm -r "$dir/install/rootfs"
container install | grep 'up to date' # as after each restart of the pod

said repair
attach pods early 8001
container repair >"$dir/repair.log" 2>&1 &
within 'grep -q "in order" $dir/repair.log'
attach pods /var/run/netns/late 8002 # its namespace is mounted after the container began; containerd has this path
cp testdata/extra.conflist /etc/cni/net.d
mkdir /etc/cni/net.d/extra
echo '{"cniVersion":"1.0.0","type":"portmap","capabilities":{"portMappings":true}}' >/etc/cni/net.d/extra/50-portmap.conf
attach extra more 8003
rules >"$dir/before"
damage
within complete || rules | diff "$dir/before" -
cat "$dir/repair.log"
oci kill repair TERM
wait $!
ip netns del more # and it is gone at once: a container that held its mount would keep it, and 8003
within '! ip link show master extra0 | grep -q veth'

said 'repair without a capability or a mount'
attach extra again 8003
"$fairlead" gc extra --gone
rules >"$dir/before"
for less in "$dir"/repair-without-*; do
	damage
	less=${less##*/}
	echo "-- $less"
	container "$less" || true
	case $less in
	*opt-cni-bin) complete ;; # it tells whose plugins made what ours did not
	*) ! complete ;;
	esac
	nft flush ruleset # without /run/cni, repair makes sets whose elements do not expire, and these stay
	"$fairlead" repair --firewall >/dev/null
	complete
done

said sweep
for less in "$dir"/sweep-without-* "$dir"/sweep; do
	less=${less##*/}
	echo "-- $less"
	attach pods gone1 8009
	attach pods /var/run/netns/gone2 8010
	ip netns del gone1
	ip netns del gone2
	! container "$less" || echo 'ends well'
	ports=$(nft list ruleset | grep -o '800[129]\|8010' | sort -u | xargs)
	case $less in
	*etc-cni-net.d | *opt-cni-bin | sweep) [ "$ports" = '8001 8002' ] ;; # lists of folders, and plugins of others
	*run-netns) [ "$ports" != '8001 8002' ] ;;
	*) [ "$ports" = '8001 8002 8009 8010' ] ;;
	esac
	"$fairlead" gc --gone >/dev/null
done

said uninstall
container uninstall
[ -z "$(ls -A /opt/cni/bin)" ]
[ "$(ls /etc/cni/net.d | xargs)" = 'extra extra.conflist' ] # not this one's
