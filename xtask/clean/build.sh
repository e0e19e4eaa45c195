# Builds the packages in a clean Debian root, with the Rust toolchain of this machine and what cargo
# has downloaded on it. $2: the sources. $3: the toolchain. $4: cargo's folder. $5: packages that
# building needs. The packages are then in $1/packages.
root_over build
for name in sources toolchain cargo target; do
    mkdir -p "$ROOT/build/$name"
done
mount --bind "$2" "$ROOT/build/sources"
mount --bind "$3" "$ROOT/build/toolchain"
mount -o remount,bind,ro "$ROOT/build/toolchain"
mkdir -p "$FOLDER/cargo/upper" "$FOLDER/cargo/work"
mount -t overlay -o "lowerdir=$4,upperdir=$FOLDER/cargo/upper,workdir=$FOLDER/cargo/work" \
    none "$ROOT/build/cargo"
apt update
# shellcheck disable=SC2086 # a list
apt install -y --no-install-recommends $5 >"$FOLDER/log" 2>&1 || {
    tail -n 20 "$FOLDER/log" >&2
    die "what building needs could not be installed"
}
inside env PATH=/build/toolchain/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/build/cargo \
    CARGO_NET_OFFLINE=true CARGO_TARGET_DIR=/build/target CARGO_PROFILE_DEV_DEBUG=0 \
    CARGO_INCREMENTAL=0 CARGO_BUILD_JOBS="${CARGO_BUILD_JOBS:-default}" \
    SOURCE_DATE_EPOCH=1700000000 \
    sh -c 'cd /build/sources && cargo run --quiet --locked --package xtask -- deb --programs'
mkdir -p "$FOLDER/packages"
cp "$ROOT"/build/target/debian/debug/*.deb "$FOLDER/packages/"
ok "the packages were built in it"
