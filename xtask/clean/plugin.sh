# try_plugin FITS OTHER: installs and removes the package FITS of charon's plugin in the root, whose
# strongSwan it fits, and has OTHER refused, which fits another one. Without OTHER: not that.
try_plugin() {
    SO=$ROOT/usr/lib/ipsec/plugins/libstrongswan-lockgate.so
    CONF=$ROOT/etc/strongswan.d/charon/lockgate.conf
    cp "$1" "$ROOT/srv/fits.deb"
    if [ -n "$2" ]; then
        cp "$2" "$ROOT/srv/other.deb"
        refused "with no other there"
        [ ! -e "$SO" ] || die "$2 was unpacked"
    fi
    inside dpkg -i /srv/fits.deb >"$FOLDER/log" 2>&1 || die "not installed: $(cat "$FOLDER/log")"
    [ "$(inside dpkg-query -W -f '${Status}' lockgate-charon)" = "install ok installed" ] ||
        die "not installed: $(inside dpkg-query -W lockgate-charon)"
    [ -s "$SO" ] && [ -s "$CONF" ] || die "installed without its files"
    [ -z "$(inside ldd -r "/${SO#"$ROOT"/}" 2>&1 | grep 'not found')" ] ||
        die "a library is missing: $(inside ldd -r "/${SO#"$ROOT"/}" 2>&1)"
    versions=$(inside dpkg-query -W lockgate-charon libstrongswan | tr '\t\n' '  ')
    ok "lockgate-charon was installed with dpkg: $versions"
    if [ -n "$2" ]; then
        before=$(md5sum "$SO")
        refused "over the one that fits"
        [ "$(md5sum "$SO")" = "$before" ] || die "$2 took the place of the one that fits"
        ok "dpkg refuses the plugin of another strongSwan, and says which it wants"
    fi
    inside dpkg -r lockgate-charon >"$FOLDER/log" 2>&1 || die "$(cat "$FOLDER/log")"
    [ ! -e "$SO" ] || die "removed, the plugin is still there"
    [ -s "$CONF" ] || die "removed with its configuration"
    inside dpkg -P lockgate-charon >"$FOLDER/log" 2>&1 || die "$(cat "$FOLDER/log")"
    [ -z "$(inside dpkg --audit)" ] || die "dpkg says $(inside dpkg --audit)"
    left=$(find "$ROOT/etc/strongswan.d" "$ROOT/usr/lib/ipsec" "$ROOT/usr/share/doc" \
        -name '*lockgate*' ! -path '*/doc/lockgate*')
    [ -z "$left" ] && [ ! -e "$ROOT/usr/share/doc/lockgate-charon" ] || die "left behind: $left"
    ok "removed and purged, it leaves nothing behind"
}

# refused WHEN: fails if OTHER can be installed, or dpkg does not say why not.
refused() {
    if inside dpkg -i /srv/other.deb >"$FOLDER/log" 2>&1; then
        die "the package of another strongSwan was installed, $1"
    fi
    grep -q "libstrongswan (>= " "$FOLDER/log" || grep -q "libstrongswan (<< " "$FOLDER/log" ||
        die "dpkg does not say what it wants: $(cat "$FOLDER/log")"
}
