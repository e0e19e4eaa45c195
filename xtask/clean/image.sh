# Does what the Dockerfile says, without a program for containers, and starts what comes of it: a
# gateway in a network namespace, with the capabilities that the Dockerfile names. $2 is the folder
# that the image is made of; the file `steps` in it calls the functions below.
CONTEXT=$2
ROOT=$FOLDER/image
mkdir -p "$ROOT"

add() {
    tar -C "$ROOT$2" -xf "$CONTEXT/$1"
    kernel_files
}

copy() {
    cp "$CONTEXT/$1" "$ROOT$2"
}

run() {
    inside sh -c "$1" >"$FOLDER/log" 2>&1 || die "RUN $1: $(cat "$FOLDER/log")"
}

entrypoint() {
    ENTRYPOINT=$*
}

cmd() {
    CMD=$*
}

capabilities() {
    CAPABILITIES=$*
}

. "$CONTEXT/steps"
ok "the image was built as the Dockerfile says, by chroot and unshare"

# Names of namespaces, which this machine does not see.
mount -t tmpfs none /run
ip netns add gateway
ip netns add others
for port in lan wan; do
    ip link add $port netns gateway type veth peer name $port netns others
    ip -n gateway link set $port up
    ip -n others link set $port up
done
ip -n gateway address add 192.0.2.1/24 dev wan

# In the image and the gateway's namespace. Call it in a subshell: it does not come back.
there() {
    # shellcheck disable=SC2016 # the inner shell's words
    exec ip netns exec gateway env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C sh -c \
        'root=$0; mount -t sysfs none "$root/sys" && exec chroot "$root" "$@"' "$ROOT" "$@"
}

code=0
# shellcheck disable=SC2086 # words of a command
(there $ENTRYPOINT $CMD) >"$FOLDER/log" 2>&1 || code=$?
[ $code -eq 2 ] || die "without a configuration it ends with $code: $(cat "$FOLDER/log")"
[ -s "$FOLDER/log" ] || die "without a configuration it says nothing"
ok "without a configuration it says so and ends"

(there lockgate init --name gw-a --lan lan --network 10.1.0.0/16 --wan wan --peer gw-b \
    --peer-address 192.0.2.2 --peer-network 10.2.0.0/16 --out-dir /srv/files) >/dev/null
mv "$ROOT"/srv/files/gw-a-gw-b.keys "$ROOT/etc/lockgate/"
mv "$ROOT"/srv/files/gw-a.toml "$ROOT/etc/lockgate/lockgate.toml"
only=-all
for capability in $CAPABILITIES; do
    only=$only,+$capability
done
# shellcheck disable=SC2086 # words of a command
(there setpriv --bounding-set "$only" $ENTRYPOINT $CMD) >"$FOLDER/log" 2>&1 &
daemon=$!
left=60
until (there lockgate show status) >"$FOLDER/status" 2>&1; do
    left=$((left - 1))
    if [ $left -eq 0 ] || ! kill -0 $daemon 2>/dev/null; then
        if grep -q "is too old: Lockgate needs" "$FOLDER/log"; then
            skip "a gateway of the image: $(tail -n 1 "$FOLDER/log")"
            echo "$passed passed, 0 failed, $skipped skipped"
            exit 0
        fi
        kill $daemon 2>/dev/null || true
        die "the gateway did not start: $(cat "$FOLDER/log" "$FOLDER/status")"
    fi
    sleep 1
done
(there lockgate show port) >"$FOLDER/ports" 2>&1 || die "$(cat "$FOLDER/ports")"
cat "$FOLDER/ports"
ok "a gateway of the image runs, with the capabilities that the Dockerfile names"
kill -TERM $daemon
code=0
wait $daemon || code=$?
[ $code -eq 0 ] || die "told to end, it ended with $code: $(cat "$FOLDER/log")"
(there lockgate detach)
ip netns del gateway
ip netns del others
ok "it ended as it was told to, and \`lockgate detach\` opened its ports"
