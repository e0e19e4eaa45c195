#!/bin/bash
# SPDX-License-Identifier: MIT
# Fetches the source of the strongSwan that is installed, whose headers the plugin is built against:
#   source.sh FOLDER            prints the source's folder
#   source.sh FOLDER RELEASE    likewise, of the strongSwan of another release of Debian ("trixie")
# Debian has no package of these headers. The machine's list of sources stays as it is.
set -euo pipefail
folder=${1:?usage: source.sh FOLDER [RELEASE]}
other=${2:-}
# This machine's own release is no other one, if there is a strongSwan.
if grep -qx "VERSION_CODENAME=${other:-none}" /etc/os-release &&
	dpkg-query -W libstrongswan > /dev/null 2>&1; then
	other=
fi
if [ -z "$other" ]; then
	version=$(dpkg-query -W -f '${Version}' libstrongswan | sed 's/-[^-]*$//; s/^[0-9]*://')
else
	folder=$folder/$other
	version=$(ls -d "$folder"/strongswan-*/src 2>/dev/null |
		sed "s|.*/strongswan-||; s|/src$||" || true)
fi
if [ -d "$folder/strongswan-$version/src" ]; then
	echo "$folder/strongswan-$version"
	exit
fi
mkdir -p "$folder/apt/lists/partial"
# The machine's own archives, asked for sources.
apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' \
	'Created-By: Packages' | sort -u | while IFS='|' read -r origin uri release component; do
	[ "$origin" = Debian ] || continue
	if [ -n "$other" ]; then
		case $release in
		*-security) release=$other-security ;;
		*-*) continue ;;
		*) release=$other ;;
		esac
	fi
	echo "deb-src $uri $release $component"
done > "$folder/apt/sources.list"
options=(-qq -o Acquire::Retries=3 -o "Dir::Etc::SourceList=$folder/apt/sources.list"
	-o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$folder/apt/lists")
apt-get "${options[@]}" update >&2
cd "$folder"
if [ -n "$other" ]; then
	version=$(apt-cache "${options[@]}" showsrc strongswan | sed -n 's/^Version: //p' |
		sed 's/-[^-]*$//; s/^[0-9]*://' | sort -V | tail -n 1)
fi
# Packages of one upstream version share its archive: the first that is still there will do.
for package in $(apt-cache "${options[@]}" showsrc strongswan | sed -n 's/^Version: //p'); do
	case $package in "$version"-*) ;; *) continue ;; esac
	apt-get "${options[@]}" source --download-only --tar-only "strongswan=$package" >&2 && break
done
tar -xf "$(ls "strongswan_$version".orig.tar.?z*)"
rm -r apt
echo "$folder/strongswan-$version"
