#!/bin/sh
# The images that the tests and the end-to-end tests of Kubernetes run, made from the programs in BIN and on this host, as an archive
# for `ctr images import`: images.sh BIN ARCHIVE. All but Fairlead's, which is as a release makes it, are one file system under
# several names.
set -eu
bin=$1 archive=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
root=$dir/root
mkdir -p "$root/bin" "$root/etc" "$root/tmp" "$root/uploads" "$root/usr" "$root/var"
chmod 1777 "$root/tmp"

# busybox's shell prefers its own applets to other programs, so the shell is another one; and its wget -T crashes.
for applet in $(busybox --list); do ln -s busybox "$root/bin/$applet"; done
cp --remove-destination "$(command -v busybox)" "$root/bin/busybox"
ln -s ../bin "$root/usr/bin"
ln -s bin "$root/sbin"

copy() { # a program, and the libraries that it is linked with
	rm -f "$root/bin/$1"
	cp -L "$(command -v "$1")" "$root/bin/$1"
	for library in $(ldd "$root/bin/$1" | grep -o '/[^ ]*'); do
		mkdir -p "$root$(dirname "$library")"
		cp -Ln "$library" "$root$library"
	done
}
for program in bash curl dig getent ip nc ss wget; do copy $program; done
ln -sf bash "$root/bin/sh"

cp "$bin/agnhost" "$bin/coredns" "$bin"/localhost.* "$root"
ln -s agnhost "$root/agnhost-2"
echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"

layer() { # NAME: what is below root
	tar --numeric-owner --owner=0 --group=0 -C "$root" -cf "$dir/$1.tar" .
	layer=$1.tar digest=sha256:$(sha256sum <"$dir/$1.tar" | cut -d ' ' -f 1)
}

image() { # NAME COMMAND, as JSON: an image of the last layer
	config=$(echo "$1" | tr -c 'a-z0-9\n' _).json
	jq -n --arg digest "$digest" --argjson command "$2" '{architecture: "amd64", os: "linux",
		rootfs: {type: "layers", diff_ids: [$digest]},
		config: {Env: ["PATH=/bin"], Entrypoint: $command[:1], Cmd: $command[1:]}}' >"$dir/$config"
	jq -n --arg name "$1" --arg config "$config" --arg layer "$layer" '{Config: $config, RepoTags: [$name], Layers: [$layer]}' \
		>>"$dir/list"
}

layer tests
image registry.k8s.io/pause:3.10.1 '["/bin/sh", "-c", "trap \"exit 0\" TERM INT; sleep infinity & wait"]'
image registry.k8s.io/coredns/coredns:v1.13.1 '["/coredns"]'
image registry.k8s.io/e2e-test-images/agnhost:2.59 '["/agnhost", "pause"]'
image registry.k8s.io/e2e-test-images/agnhost:2.55 '["/agnhost", "pause"]'
image registry.k8s.io/e2e-test-images/busybox:1.37.0-1 '["/bin/sh"]'
image registry.k8s.io/e2e-test-images/jessie-dnsutils:1.7 '["/bin/sh"]'
# the tests of Endpoints only want something that answers at port 80
image registry.k8s.io/e2e-test-images/nginx:1.14-4 '["/agnhost", "netexec", "--http-port=80"]'

rm -r "$root"
mkdir -p "$root/usr/bin" "$root/usr/lib/fairlead"
cp "$bin/fairlead" "$bin/fairlead-agent" "$root/usr/bin"
cp -a "$bin/cni" "$root/usr/lib/fairlead"
layer fairlead
image docker.io/library/fairlead:test '["/usr/bin/fairlead", "install"]'

jq -s . "$dir/list" >"$dir/manifest.json"
rm -r "$root" "$dir/list"
tar -C "$dir" -cf "$archive" .
