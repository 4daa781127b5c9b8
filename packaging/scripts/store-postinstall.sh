#!/bin/sh
# A new etcd takes over from the former one. Nodes go on with the addresses that they have meanwhile.
[ ! -d /run/systemd/system ] || { systemctl daemon-reload && systemctl try-restart fairlead-store.service; } || true
exit 0
