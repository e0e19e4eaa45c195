#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes lockgate-charon_VERSION_amd64.deb for the strongSwan whose source it is given:
#   ./package.sh STRONGSWAN [FOLDER [DEBIAN]]
# DEBIAN is the number of the release that has this strongSwan: without it, that of this machine.
# The package fits that strongSwan version alone, and says so in its dependencies.
set -eu

cd "$(dirname "$0")"
strongswan=$(cd "${1:?usage: ./package.sh STRONGSWAN [FOLDER [DEBIAN]]}" && pwd)
out=$(mkdir -p "${2:-build}" && cd "${2:-build}" && pwd)
debian=${3:-$(. /etc/os-release && echo "${VERSION_ID:?this release of Debian has no number}")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# Without what debuggers read: it would name the folder.
make -s STRONGSWAN="$strongswan" BUILD="$work/build" CFLAGS=-g0
version=$(make -s version)
upstream=$(sed -n 's/^#define VERSION "\(.*\)"/\1/p' "$work/build/config.h")
# The first version that is not this one: 5.9.8 gives 5.9.9~.
next=${upstream%.*}.$((${upstream##*.} + 1))~
# Packages of two releases never have one version.
full=$version+strongswan$upstream+deb$debian
architecture=$(dpkg --print-architecture)
root=$work/root

install -D -m 644 "$work/build/libstrongswan-lockgate.so" \
	"$root/usr/lib/ipsec/plugins/libstrongswan-lockgate.so"
strip --strip-unneeded "$root/usr/lib/ipsec/plugins/libstrongswan-lockgate.so"
# The newest version of the C library that it asks for.
libc=$(objdump -p "$root/usr/lib/ipsec/plugins/libstrongswan-lockgate.so" |
	sed -n 's/.* GLIBC_\([0-9.]*\)$/\1/p' | sort -V | tail -n 1)
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
# Pre-Depends: with another strongSwan dpkg does not even put the files there.
echo /etc/strongswan.d/charon/lockgate.conf > "$root/DEBIAN/conffiles"
cat > "$root/DEBIAN/control" <<X
Package: lockgate-charon
Version: $full
Architecture: $architecture
Maintainer: ${DEBFULLNAME:-Lockgate developers} <${DEBEMAIL:-developers@lockgate.invalid}>
Installed-Size: $(du -sk --apparent-size "$root" | cut -f 1)
Pre-Depends: libstrongswan (>= $upstream), libstrongswan (<< $next)
Depends: libc6 (>= ${libc:?}), strongswan-charon | charon-systemd
Enhances: lockgate
Section: net
Priority: optional
Description: plugin of strongSwan's charon that gives its SAs to Lockgate
 charon negotiates keys with its peers; with this plugin lockgated uses them in
 place of the kernel. Fits strongSwan $upstream of Debian $debian alone. Takes effect
 when charon is started anew.
X
# The same input makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct -- . 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
chmod -R u=rwX,go=rX "$root"
(cd "$root" && find usr -type f | LC_ALL=C sort | xargs md5sum) \
	> "$work/md5sums"
install -m 644 "$work/md5sums" "$root/DEBIAN/md5sums"
touch -d "@$SOURCE_DATE_EPOCH" "$root/DEBIAN" "$root/DEBIAN/md5sums"
package=$out/lockgate-charon_${full}_$architecture.deb
dpkg-deb --root-owner-group -Zxz -b "$root" "$package" > /dev/null
echo "$package"
