# Installs strongSwan in the clean root, tries the package of charon's plugin in an overlay over it,
# and installs it in the clean root itself. $2: the package that fits this strongSwan. $3: one that
# does not, or nothing.
ROOT=$FOLDER/clean
kernel_files
# Debian starts an IKE daemon with the package: not here, where the network is the machine's.
printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"
chmod 755 "$ROOT/usr/sbin/policy-rc.d"
apt update
apt install -y --no-install-recommends strongswan-charon strongswan-swanctl \
    libstrongswan-standard-plugins >"$FOLDER/log" 2>&1 || {
    tail -n 20 "$FOLDER/log" >&2
    die "strongSwan could not be installed"
}
ok "strongSwan was installed: $(inside dpkg-query -W libstrongswan | tr '\t' ' ')"
FITS=$(realpath "$2")
OTHER=${3:+$(realpath "$3")}
ROOT=$FOLDER/root
root_over trial
try_plugin "$FITS" "$OTHER"
ROOT=$FOLDER/clean
cp "$FITS" "$ROOT/srv/fits.deb"
inside dpkg -i /srv/fits.deb >"$FOLDER/log" 2>&1 || die "not installed: $(cat "$FOLDER/log")"
