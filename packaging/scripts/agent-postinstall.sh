#!/bin/sh
# A new agent takes over from the former one. Pods keep their connections meanwhile: the agent leaves all in the kernel.
[ ! -d /run/systemd/system ] || { systemctl daemon-reload && systemctl try-restart fairlead-agent.service; } || true
exit 0
