#!/bin/sh
# release.sh VERSION KEY OUT: makes the files of a release in OUT, from a fresh clone of the tag VERSION, and signs their
# sums with the secret key of minisign in the file KEY. docs/releasing.md says how to make the key. A second clone, in another
# directory, has to make the same bytes for every architecture.
set -eu
version=$1 key=$(realpath "$2") out=$(realpath -m "$3")
here=$(git rev-parse --show-toplevel)

fail() {
	echo "release: $*" >&2
	exit 1
}
command -v minisign >/dev/null || fail 'minisign is not installed'
clone=$(mktemp -d)
trap 'rm -rf "$clone"' EXIT
for tree in one another; do
	git -c advice.detachedHead=false clone -q --branch "$version" "$here" "$clone/$tree" || fail "there is no tag $version: git tag $version"
done
cd "$clone/one"
grep -qx "## ${version#v}" CHANGELOG.md || fail "CHANGELOG.md of $version has no heading '## ${version#v}'"
[ -e packaging/minisign.pub ] || fail "$version has no packaging/minisign.pub, by which users verify the signature"
make -s release VERSION="$version" OUT="$out"
make -s -C ../another release VERSION="$version" OUT="$clone/again" >/dev/null
diff -r "$out" "$clone/again" || fail "$version: two directories make different files"
minisign -S -s "$key" -m "$out/SHA256SUMS" -t "fairlead $version"
minisign -V -q -p packaging/minisign.pub -m "$out/SHA256SUMS" || fail "$key does not belong to packaging/minisign.pub"
echo "signed: $out"
