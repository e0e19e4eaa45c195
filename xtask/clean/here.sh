# Tries the package of charon's plugin in a copy of this machine's files that nothing else sees.
# $2: the package that fits the strongSwan of this machine. $3: one that does not, or nothing.
FITS=$(realpath "$2")
OTHER=${3:+$(realpath "$3")}
mkdir -p "$FOLDER/overlay"
mount -t tmpfs none "$FOLDER/overlay"
FOLDER=$FOLDER/overlay
ROOT=$FOLDER/root
mkdir "$FOLDER/upper" "$FOLDER/work" "$ROOT"
mount -t overlay -o "lowerdir=/,upperdir=$FOLDER/upper,workdir=$FOLDER/work" none "$ROOT"
kernel_files
# What is installed on this machine itself is none of the trial.
if inside dpkg-query -W lockgate-charon >/dev/null 2>&1; then
    inside dpkg -P lockgate-charon >/dev/null
fi
rm -f "$ROOT/usr/lib/ipsec/plugins/libstrongswan-lockgate.so" \
    "$ROOT/etc/strongswan.d/charon/lockgate.conf"
try_plugin "$FITS" "$OTHER"
