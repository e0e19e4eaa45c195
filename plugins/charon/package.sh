#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes lockgate-charon_VERSION_amd64.deb for the strongSwan whose source it is given:
#   ./package.sh STRONGSWAN [FOLDER]
# The package fits that strongSwan version alone, and says so in its dependencies.
set -eu

cd "$(dirname "$0")"
strongswan=$(cd "${1:?usage: ./package.sh STRONGSWAN [FOLDER]}" && pwd)
out=$(mkdir -p "${2:-build}" && cd "${2:-build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

make -s STRONGSWAN="$strongswan" BUILD="$work/build"
version=$(make -s version)
upstream=$(sed -n 's/^#define VERSION "\(.*\)"/\1/p' "$work/build/config.h")
# The first version that is not this one: 5.9.8 gives 5.9.9~.
next=${upstream%.*}.$((${upstream##*.} + 1))~
architecture=$(dpkg --print-architecture)
root=$work/root

install -D -m 644 "$work/build/libstrongswan-lockgate.so" \
	"$root/usr/lib/ipsec/plugins/libstrongswan-lockgate.so"
strip --strip-unneeded "$root/usr/lib/ipsec/plugins/libstrongswan-lockgate.so"
install -D -m 644 lockgate.conf "$root/etc/strongswan.d/charon/lockgate.conf"
install -D -m 644 README.md "$root/usr/share/doc/lockgate-charon/README.md"
{
	printf 'Files: *\nLicense: MIT\n\n'
	cat LICENSE
	printf '\nThe plugin is loaded into charon, which is GPL-2.0-or-later: the two together are '
	printf 'under that licence.\n'
} > "$work/copyright"
install -D -m 644 "$work/copyright" "$root/usr/share/doc/lockgate-charon/copyright"
mkdir -p "$root/DEBIAN"
echo /etc/strongswan.d/charon/lockgate.conf > "$root/DEBIAN/conffiles"
cat > "$root/DEBIAN/control" <<X
Package: lockgate-charon
Version: $version+strongswan$upstream
Architecture: $architecture
Maintainer: ${DEBFULLNAME:-Lockgate developers} <${DEBEMAIL:-developers@lockgate.invalid}>
Depends: libc6, libstrongswan (>= $upstream), libstrongswan (<< $next),
 strongswan-charon | charon-systemd
Enhances: lockgate
Section: net
Priority: optional
Description: plugin of strongSwan's charon that gives its SAs to Lockgate
 charon negotiates keys with its peers; with this plugin lockgated uses them in
 place of the kernel. Fits strongSwan $upstream alone. Takes effect when charon
 is started anew.
X
# The same input makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct -- . 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
chmod -R u=rwX,go=rX "$root"
package=$out/lockgate-charon_$version+strongswan${upstream}_$architecture.deb
dpkg-deb --root-owner-group -Zxz -b "$root" "$package" > /dev/null
echo "$package"
