# life.sh ROOT OLD NEW VERSION: a package of v0.0.1 is installed, upgraded to VERSION, downgraded and removed in ROOT, with a
# container alive.
set -eu
root=$1 old=$2 new=$3 version=$4
case $old in
*.deb)
	put() { dpkg --root="$root" --force-downgrade -i "$1" >/dev/null; }
	drop() { dpkg --root="$root" -r fairlead >/dev/null; }
	mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/triggers"
	: >"$root/var/lib/dpkg/status"
	;;
*.rpm)
	put() { rpm --root "$root" --nosignature --nodeps --ignorearch --oldpackage -U "$1"; }
	drop() { rpm --root "$root" --nodeps -e fairlead; }
	mkdir -p "$root/var/lib/rpm"
	;;
*.apk) # apk is in no registry that the tests reach: this does with a package what apk does, in its order
	mkdir -p "$root/lib/apk"
	in_root() { # SCRIPT OF THE PACKAGE, VERSION...
		tar --warning=no-unknown-keyword -xzOf "$1" ".$2" >"$root/lib/apk/script"
		shift 2
		chroot "$root" /bin/sh /lib/apk/script "$@"
	}
	put() {
		script=post-install
		[ ! -e "$root/lib/apk/package" ] || script=post-upgrade
		tar --warning=no-unknown-keyword -xzf "$1" --anchored --exclude='.*' -C "$root"
		cp "$1" "$root/lib/apk/package"
		in_root "$1" $script 0.0.2-r1 0.0.1-r1 >/dev/null
	}
	drop() {
		in_root "$root/lib/apk/package" pre-deinstall 0.0.1-r1 >/dev/null
		tar --warning=no-unknown-keyword -tzf "$root/lib/apk/package" --anchored --exclude='.*' | while read -r file; do
			[ -d "$root/$file" ] && [ ! -L "$root/$file" ] || rm "$root/$file"
		done
	}
	;;
esac
mkdir -p "$root/bin" "$root/tmp" "$root/opt/cni/bin" "$root/net.d"
cp "$(command -v busybox)" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
cp /usr/lib/cni/portmap "$root/opt/cni/bin/" # the reference's, from another package
echo another >"$root/opt/cni/bin/another"
cat >"$root/net.d/lan.conflist" <<END
{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "bridge", "bridge": "lan0", "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}}]}
END
export CNI_PATH="$root/opt/cni/bin" NETCONFPATH="$root/net.d"
fairlead() { "$root/usr/bin/fairlead" "$@"; }

fail() {
	echo "FAILED: $*"
	ls -lA "$root/opt/cni/bin"
	exit 1
}
is() { # the version that all is of
	fairlead --version | grep -qx "fairlead $1" || fail "fairlead is not $1"
	for plugin in bridge host-local loopback; do
		"$root/opt/cni/bin/$plugin" 2>&1 | grep -qF "($1)" || fail "$plugin is not $1"
	done
	[ -x "$root/usr/lib/fairlead/cni/tap" ] || fail "usr/lib/fairlead/cni/tap"
	[ -e "$root/usr/lib/systemd/system/fairlead-dhcp.socket" ] || fail 'no unit'
	[ -e "$root/usr/share/doc/fairlead/NOTICE" ] || fail 'no NOTICE'
	grep -q another "$root/opt/cni/bin/another" || fail 'a file of others was touched'
}
portmap() { cmp -s /usr/lib/cni/portmap "$root/opt/cni/bin/portmap"; }

put "$old"
is v0.0.1
portmap || fail 'the reference portmap was replaced without being asked'
ip netns add c1
fairlead add lan c1 >/dev/null
put "$new"
is "$version"
fairlead check lan c1 || fail 'check after the upgrade'
chroot "$root" /usr/bin/fairlead install --from /usr/lib/fairlead/cni >/dev/null
portmap && fail 'the reference portmap was not replaced when asked'
put "$old"
is v0.0.1
portmap && fail 'a downgrade leaves portmap alone'
fairlead check lan c1 || fail 'check after the downgrade'
fairlead del lan c1
ip netns del c1
drop
portmap || fail 'the reference portmap is not back'
[ "$(ls -A "$root/opt/cni/bin" | xargs)" = 'another portmap' ] || fail 'left in the directory of plugins'
left=$(find "$root" -path "$root/usr/*" ! -type d)
[ -z "$left" ] || fail "left: $left"
echo lived
