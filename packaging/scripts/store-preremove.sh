#!/bin/sh
# Ends etcd when the package is removed: dpkg says "remove", rpm 0, and apk the version; not for an upgrade. The data stay in
# /var/lib/fairlead/store.
case ${1:-} in
upgrade | failed-upgrade | deconfigure | [1-9]) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl disable --now fairlead-store.service || true
