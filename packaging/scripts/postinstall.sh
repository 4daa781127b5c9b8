#!/bin/sh
# Puts the plugins where container runtimes search for them, beside those of other packages. A directory that cannot be
# written to is no reason to leave a package half-installed.
fairlead install --from /usr/lib/fairlead/cni --keep-reference ||
	echo 'fairlead: the plugins are not installed; run `fairlead install` when the reason is gone, or with --dir' >&2
said=$(fairlead install --from /usr/lib/fairlead/cni --check 2>&1) ||
	echo 'fairlead: other CNI plugins stay in place; `fairlead install` replaces them and keeps them for `fairlead install --uninstall`'
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
exit 0
