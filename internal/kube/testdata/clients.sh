# A host with an uplink eth1. In $1, net.d/NAME are directories with a network each, and bin is what was built.
dir=$1
export CNI_PATH=$dir/bin/cni
ip link set lo up
ip link add eth1 type veth peer name wire
ip link set eth1 up
ip link set wire up
for conf in "$dir"/net.d/*; do
	export NETCONFPATH=$conf
	net=$(sed -n 's/^  "name": "\(.*\)",$/\1/p' "$conf/net.conflist")
	echo "== ${conf##*/}: $net"
	"$dir/bin/fairlead" validate "$conf/net.conflist"
	ip netns add pod
	args='IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_NAMESPACE=default'
	case $conf in
	*nomad*) args='IgnoreUnknown=1;NOMAD_REGION=global;NOMAD_NAMESPACE=default;NOMAD_JOB_ID=web;NOMAD_GROUP_NAME=web;NOMAD_ALLOC_ID=5a' ;;
	esac
	grep -q portMappings "$conf/net.conflist" && ports='{"portMappings":[{"hostPort":8001,"containerPort":80,"protocol":"tcp"}]}' || ports=
	CNI_ARGS=$args CAP_ARGS=$ports \
		"$dir/bin/fairlead" add --exec "$net" pod >/dev/null
	"$dir/bin/fairlead" check --exec "$net" pod
	"$dir/bin/fairlead" del --exec "$net" pod
	ip netns del pod
	[ -z "$(ls /var/lib/cni/results)" ]
	ip -o link show type bridge | cut -d' ' -f2 | tr -d : | xargs -rn1 ip link del # each network is of another host
done
