#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds the plugin against the strongSwan of the next Debian, whose charon runs in
# `make test-long PART=charon6` alone:
#   next.sh FOLDER      puts source and plugin below FOLDER
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:?usage: next.sh FOLDER}
release=trixie
if ! source=$("$here/source.sh" "$folder" "$release"); then
	echo "SKIPPED: the source of strongSwan in Debian $release cannot be had"
	echo "test result: 0 passed, 0 failed, 1 skipped"
	exit 0
fi
source=$(tail -n 1 <<< "$source")
if make --silent -C "$here" "STRONGSWAN=$source" "BUILD=$folder/$release/plugin"; then
	echo "built against ${source##*/}, of Debian $release: make test-long PART=charon6 runs it"
	echo "test result: 1 passed, 0 failed, 0 skipped"
else
	echo "test result: 0 passed, 1 failed, 0 skipped"
	exit 1
fi
