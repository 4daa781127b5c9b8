#!/bin/sh
# Ends the agent when the package is removed, and removes what it made: dpkg says "remove", rpm 0, and apk the version; not
# for an upgrade. Another network than pods takes `fairlead-agent --remove --network NAME` before.
case ${1:-} in
upgrade | failed-upgrade | deconfigure | [1-9]) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl disable --now fairlead-agent.service || true
fairlead-agent --remove || echo 'fairlead-agent: what it made is not removed' >&2
exit 0
