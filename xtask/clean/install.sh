# Installs the packages of $1/packages in a clean Debian root, starts what they bring, and removes
# them.
root_over trial
cp "$FOLDER"/packages/*.deb "$ROOT/srv/"
GATEWAY=/srv/$(cd "$ROOT/srv" && ls lockgate_*.deb)
TOOLS=/srv/$(cd "$ROOT/srv" && ls lockgate-tools_*.deb)

# Fails if something of the packages is there.
assert_absent() {
    [ ! -e "$ROOT/usr/sbin/lockgated" ] || die "$1: lockgated is there"
    [ -z "$(inside dpkg --audit)" ] || die "$1: dpkg says $(inside dpkg --audit)"
    ! inside dpkg-query -W lockgate lockgate-tools >/dev/null 2>&1 || die "$1: dpkg knows them"
}

# Without a network: what is missing cannot be fetched, and is named.
if unshare --net env -i PATH="$PATH" chroot "$ROOT" apt-get install -y "$GATEWAY" \
    >"$FOLDER/log" 2>&1; then
    die "installed without what it depends on"
fi
grep -q nftables "$FOLDER/log" || die "apt does not say what is missing: $(cat "$FOLDER/log")"
assert_absent "without a network"
ok "without a network nothing is installed, not even half"

# A locale that the machine does not have, and which is not UTF-8.
SPEAKS=de_DE.ISO-8859-1
apt update
apt install -y --no-install-recommends "$GATEWAY" >"$FOLDER/log" 2>&1 ||
    die "not installed: $(cat "$FOLDER/log")"
[ "$(inside dpkg-query -W -f '${Status}' lockgate)" = "install ok installed" ] ||
    die "not installed: $(inside dpkg-query -W lockgate)"
inside getent group lockgate lockgate-admin >/dev/null || die "the groups are missing"
inside lockgate --version
inside lockgated --version
code=0
inside lockgate check /etc/lockgate/lockgate.toml >"$FOLDER/log" 2>&1 || code=$?
[ $code -eq 1 ] || die "the default configuration: $code, $(cat "$FOLDER/log")"
[ -s "$FOLDER/log" ] || die "nothing says what is wrong with the default configuration"
ok "lockgate was installed with apt, in another locale"

apt install -y --no-install-recommends "$TOOLS" >"$FOLDER/log" 2>&1 ||
    die "not installed: $(cat "$FOLDER/log")"
inside lockgate demo --version
inside lockgate bench --version
ok "lockgate-tools was installed beside it"

# The example of the package, with the programs of the package.
EXAMPLE=/usr/share/doc/lockgate/examples/two-gateways.sh
mkdir -p "$ROOT/run/netns"
if unshare --net env -i PATH="$PATH" LC_ALL="$SPEAKS" chroot "$ROOT" sh $EXAMPLE \
    >"$FOLDER/log" 2>&1; then
    tail -n 2 "$FOLDER/log"
    ok "two gateways of the package forward through ESP"
elif grep -q "is too old: Lockgate needs" "$FOLDER/log"; then
    skip "two gateways of the package: $(tail -n 1 "$FOLDER/log")"
else
    die "the example: $(cat "$FOLDER/log")"
fi

inside touch /etc/lockgate/gw-a.keys
apt remove -y lockgate lockgate-tools >"$FOLDER/log" 2>&1 || die "$(cat "$FOLDER/log")"
[ -e "$ROOT/etc/lockgate/lockgate.toml" ] || die "removed with its configuration"
apt purge -y lockgate lockgate-tools >"$FOLDER/log" 2>&1 || die "$(cat "$FOLDER/log")"
assert_absent "purged"
[ -e "$ROOT/etc/lockgate/gw-a.keys" ] || die "keys were purged"
left=$(find "$ROOT" -xdev -path "$ROOT/srv" -prune -o -name '*lockgate*' -print |
    grep -v -e /etc/lockgate -e /var/lib/apt -e /var/log || true)
[ -z "$left" ] || die "left behind: $left"
ok "removed and purged, they leave keys alone behind"
