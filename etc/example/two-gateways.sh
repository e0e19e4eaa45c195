#!/bin/sh
# Two gateways and a host behind each, in network namespaces of this machine:
#
#   host-a ── lan gw-a wan ── wire ── wan gw-b lan ── host-b
#   10.1.0.10    192.0.2.1           192.0.2.2     10.2.0.10
#
# Makes the files of both gateways with `lockgate init`, starts both daemons, pings, sends some
# traffic and says what was seen on the wire. Ends by itself within two minutes, changes nothing
# outside of its namespaces, and takes everything away at the end, after Ctrl-C too.
#
# As root: sh two-gateways.sh
# Needs lockgate, lockgated, ip, nft, ping; with tcpdump it looks at the wire as well.
set -eu

PINGS=1000
SIZE=1000
# In seconds: for a daemon to be ready, and for the pings.
PATIENCE=60
N=lockgate-example-$$

die() {
    echo "two-gateways: $*" >&2
    exit 1
}

tear_down() {
    # 130: interrupted, or a command that was interrupted ended it.
    [ $? -ne 130 ] || echo "two-gateways: interrupted" >&2
    trap '' INT TERM HUP
    # shellcheck disable=SC2086 # a list of numbers
    [ -z "$PROCESSES" ] || kill $PROCESSES 2>/dev/null || true
    wait
    for name in $NAMESPACES; do
        ip netns del "$N-$name" 2>/dev/null || true
    done
    rm -rf "$WORK"
}

# A namespace with loopback up.
namespace() {
    ip netns add "$N-$1"
    NAMESPACES="$NAMESPACES $1"
    ip -n "$N-$1" link set lo up
}

# inside NAME COMMAND …
inside() {
    name=$1
    shift
    ip netns exec "$N-$name" "$@"
}

# cable A DEV-A B DEV-B: a veth pair between two namespaces, both ends up.
cable() {
    ip link add "$2" netns "$N-$1" type veth peer name "$4" netns "$N-$3"
    ip -n "$N-$1" link set "$2" up
    ip -n "$N-$3" link set "$4" up
}

build() {
    for name in host-a gw-a wire gw-b host-b; do
        namespace $name
    done
    cable host-a eth0 gw-a lan
    cable gw-a wan wire to-a
    cable wire to-b gw-b wan
    cable gw-b lan host-b eth0
    ip -n "$N-wire" link add bridge type bridge
    for port in to-a to-b; do
        ip -n "$N-wire" link set $port master bridge
    done
    ip -n "$N-wire" link set bridge up
    address a 10.1 192.0.2.1 10.2 192.0.2.2
    address b 10.2 192.0.2.2 10.1 192.0.2.1
}

# address SITE NETWORK OUTER FAR-NETWORK FAR-OUTER
address() {
    ip -n "$N-host-$1" address add "$2.0.10/16" dev eth0
    ip -n "$N-host-$1" route add default via "$2.0.1"
    ip -n "$N-gw-$1" address add "$2.0.1/16" dev lan
    ip -n "$N-gw-$1" address add "$3/24" dev wan
    ip -n "$N-gw-$1" route add "$4.0.0/16" via "$5"
}

# The files of both gateways, each with folders of its own for what the daemon keeps.
configure() {
    inside gw-a lockgate init --name gw-a --lan lan --network 10.1.0.0/16 --wan wan \
        --address 192.0.2.1 --peer gw-b --peer-address 192.0.2.2 --peer-network 10.2.0.0/16 \
        --out-dir "$WORK/files" >/dev/null
    for gateway in gw-a gw-b; do
        folder=$WORK/$gateway
        mkdir -m 700 "$folder"
        mv "$WORK/files/$gateway.toml" "$WORK/files/$gateway-"*.keys "$folder/"
        sed -i "/^\[node\]/a run_dir = \"$folder/run\"\nstate_dir = \"$folder/state\"" \
            "$folder/$gateway.toml"
        printf '\n[metrics]\nlisten = "off"\n' >>"$folder/$gateway.toml"
    done
}

start() {
    for gateway in gw-a gw-b; do
        ip netns exec "$N-$gateway" lockgated --config "$WORK/$gateway/$gateway.toml" \
            >"$WORK/$gateway/log" 2>&1 &
        PROCESSES="$PROCESSES $!"
    done
    for gateway in gw-a gw-b; do
        left=$PATIENCE
        until ask $gateway status >/dev/null 2>&1; do
            left=$((left - 1))
            if [ $left -eq 0 ] || ! runs $gateway; then
                cat "$WORK/$gateway/log" >&2
                die "$gateway did not start"
            fi
            sleep 1
        done
        echo "$gateway runs"
    done
}

# runs GATEWAY: its daemon has not ended.
runs() {
    [ "$1" = gw-a ] && number=1 || number=2
    # shellcheck disable=SC2086 # a list of numbers
    kill -0 "$(echo $PROCESSES | cut -d ' ' -f $number)" 2>/dev/null
}

# ask GATEWAY WHAT …: what its daemon shows.
ask() {
    gateway=$1
    shift
    lockgate --socket "$WORK/$gateway/run/api.sock" show "$@"
}

# The first pings may be lost: the gateways ask for the link addresses of their neighbours.
wait_for_a_ping() {
    left=$PATIENCE
    until inside host-a ping -q -c 1 -W 1 10.2.0.10 >/dev/null; do
        left=$((left - 1))
        [ $left -gt 0 ] || die "no ping comes through: $(ask gw-a counters)"
    done
    echo "10.1.0.10 reaches 10.2.0.10"
}

listen() {
    command -v tcpdump >/dev/null || return 0
    # Not by a function: `$!` would be a shell's number.
    ip netns exec "$N-wire" tcpdump -i bridge -n -U -w "$WORK/wire.pcap" ip 2>"$WORK/heard" &
    LISTENER=$!
    PROCESSES="$PROCESSES $LISTENER"
    left=$PATIENCE
    until grep -q listening "$WORK/heard"; do
        left=$((left - 1))
        [ $left -gt 0 ] || die "tcpdump does not start: $(cat "$WORK/heard")"
        sleep 1
    done
}

send() {
    inside host-a ping -q -c $PINGS -i 0.002 -s $SIZE -w $PATIENCE 10.2.0.10 | tail -n 2
}

# frames FILTER: how many frames of the capture it accepts.
frames() {
    tcpdump -n -r "$WORK/wire.pcap" "$1" 2>/dev/null | wc -l
}

look() {
    ask gw-a peer
    [ -n "$LISTENER" ] || { echo "the wire was not looked at: there is no tcpdump"; return 0; }
    # What the kernel has seen, tcpdump still has to write.
    sleep 1
    kill "$LISTENER"
    wait "$LISTENER" || true
    esp=$(frames 'ip proto 50')
    # Neighbours may ask for each other's link addresses, and listeners report, at any time.
    clear=$(frames 'not ip proto 50 and not arp and not icmp6 and not dst net ff02::/16')
    echo "on the wire: $esp packets of ESP, $clear others"
    [ "$esp" -gt "$PINGS" ] || die "too few packets of ESP"
    [ "$clear" -eq 0 ] || die "packets left in cleartext"
}

[ "$(id -u)" -eq 0 ] || die "must be run as root: it makes network namespaces"
for program in ip nft ping lockgate lockgated; do
    command -v $program >/dev/null || die "$program is not in PATH"
done
PROCESSES='' NAMESPACES='' LISTENER=''
WORK=$(mktemp -d)
trap tear_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
build
configure
start
wait_for_a_ping
listen
send
look
echo "two-gateways: done"
