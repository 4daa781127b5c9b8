#!/bin/sh
# Takes the plugins out when the package is removed: dpkg says "remove", rpm 0, and apk the version; not for an upgrade.
case ${1:-} in
upgrade | failed-upgrade | deconfigure | [1-9]) exit 0 ;;
esac
[ ! -d /opt/cni/bin ] || fairlead install --uninstall ||
	echo 'fairlead: the plugins in /opt/cni/bin are not removed' >&2
exit 0
