"""The rows `live …`: a running daemon, its kernel half included, and scapy as its peer on the wire.

    host (kernel) ── lan  gateway: lockgated  wan ── peer: a raw socket, scapy
     10.1.0.5            192.0.2.1                    every row's remote end

In tunnel mode the peer pings the host behind the gateway, in transport mode the gateway itself: the
kernels there answer. With ESN the pings' numbers lead the window beyond 2^32. What comes back is
opened and made anew, byte for byte, as in `matrix.py`. In the end a changed packet of every row
arrives: nothing answers, and the counter `integrity` shows each.

Everything is in network namespaces of this run, and is torn down however it ends; what an earlier
run left behind that was killed is removed first.
"""

import ctypes
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6
from scapy.packet import Raw

import esp
import matrix
from gateway import mac_bytes, write_keys
from rows import HOST, OURS, Failed, check, packed

PREFIX = "lgi"
GATEWAY_MAC, PEER_MAC = "02:00:00:00:02:01", "02:00:00:00:02:fe"
ROUTER = {4: "192.0.2.254", 6: "2001:db8:ff::fe"}
READY_S, ANSWER_S, COMMAND_S = 30, 5, 20
# For all rows together; then what is left fails.
LIMIT_S = 120
ALL_PROTOCOLS, OUTGOING = 3, 4
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
SIZES = (0, 56, 1200)


def missing():
    """Why these rows cannot run; empty if they can."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [name for name in ("ip", "ethtool") if not shutil.which(name)]
    return f"{' and '.join(absent)} not installed" if absent else ""


def run(*words, standard_input=None):
    """Runs a command that must succeed; returns what it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    said = f"{done.stdout}{done.stderr}"
    check(done.returncode == 0, f"{' '.join(str(word) for word in words)}: {said}")
    return done.stdout


def inside_namespace(name, act):
    """Does something in a network namespace, and returns what that returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as ours, open(f"/run/netns/{name}") as theirs:
        check(libc.setns(theirs.fileno(), CLONE_NEWNET) == 0, "cannot enter a namespace")
        try:
            return act()
        finally:
            check(libc.setns(ours.fileno(), CLONE_NEWNET) == 0, "cannot leave a namespace")


class Laboratory:
    """Three namespaces and a daemon. A context: what it made is gone behind it."""

    def __init__(self, daemon, rows):
        self.program, self.rows = daemon, rows
        self.names = {role: f"{PREFIX}{os.getpid()}-{role}" for role in ("host", "gw", "peer")}
        self.daemon = self.socket = self.folder = self.log = None

    def __enter__(self):
        try:
            sweep()
            self.folder = Path(tempfile.mkdtemp(prefix=f"lockgate-live-{os.getpid()}-"))
            self.connect()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the daemon and removes everything, as far as it came."""
        if self.socket:
            self.socket.close()
        if self.daemon:
            self.daemon.terminate()
            try:
                self.daemon.wait(COMMAND_S)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
        if self.log:
            self.log.close()
        for name in self.names.values():
            remove(name)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def ip(self, role, lines):
        """Runs `ip` in a namespace with each line."""
        run("ip", "-n", self.names[role], "-batch", "-", standard_input=lines)

    def inside(self, role, *words):
        """Runs a command in a namespace."""
        return run("ip", "netns", "exec", self.names[role], *words)

    def connect(self):
        """Namespaces, links, addresses, routes and neighbours."""
        for role, name in self.names.items():
            run("ip", "netns", "add", name)
            self.ip(role, "link set lo up\n")
        self.inside("peer", "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1",
                    "net.ipv6.conf.default.disable_ipv6=1")
        host, peer = self.names["host"], self.names["peer"]
        self.ip("gw", f"""link add lan type veth peer name eth0 netns {host}
            link add wan type veth peer name eth0 netns {peer}
            link set lan up
            addr add 10.1.0.1/16 dev lan
            addr add 2001:db8:1::1/48 dev lan nodad
            link set wan address {GATEWAY_MAC} up
            addr add {OURS[4]}/24 dev wan
            addr add {OURS[6]}/64 dev wan nodad
            neigh replace {ROUTER[4]} lladdr {PEER_MAC} dev wan nud permanent
            neigh replace {ROUTER[6]} lladdr {PEER_MAC} dev wan nud permanent
            route replace default via {ROUTER[4]} dev wan
            route replace ::/0 via {ROUTER[6]} dev wan
        """)
        self.ip("host", f"""link set eth0 up
            addr add {HOST[4]}/16 dev eth0
            addr add {HOST[6]}/48 dev eth0 nodad
            route replace default via 10.1.0.1
            route replace ::/0 via 2001:db8:1::1
        """)
        self.ip("peer", f"link set eth0 address {PEER_MAC} up\n")
        for role, interface in (("gw", "lan"), ("gw", "wan"), ("host", "eth0"), ("peer", "eth0")):
            self.inside(role, "ethtool", "-K", interface, "tx", "off")
        self.socket = self.raw_socket()

    def raw_socket(self):
        """A raw socket on the peer's interface."""

        def bound():
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
            raw.bind(("eth0", 0))
            raw.setblocking(False)
            return raw

        return inside_namespace(self.names["peer"], bound)

    def start(self):
        """Configuration, keys and the daemon, until it says that it has started."""
        for name in ("run", "state", "keys"):
            (self.folder / name).mkdir(mode=0o750)
        write_keys(self.folder / "keys", self.rows)
        file = self.folder / "gateway.toml"
        file.write_text(self.configuration())
        command = ["ip", "netns", "exec", self.names["gw"], self.program, "--config", file]
        self.log = open(self.folder / "log", "w+b")
        # `ip netns exec` becomes the daemon: the process is ours to end.
        self.daemon = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, preexec_fn=die_with_parent
        )
        end = time.monotonic() + READY_S
        while " started: " not in self.said():
            check(self.daemon.poll() is None, f"lockgated ended: {self.said()}")
            check(time.monotonic() < end, f"lockgated is not ready: {self.said()}")
            time.sleep(0.05)

    def configuration(self):
        """The daemon's configuration."""
        return configuration(self.folder, self.rows)

    def said(self):
        """What the daemon has said so far."""
        return (self.folder / "log").read_text(errors="replace")

    def command(self, *words):
        """Runs the operator's command; returns what it printed."""
        program = self.program.with_name("lockgate")
        return run(program, "--socket", self.folder / "run" / "api.sock", *words)

    def counters(self):
        """The daemon's counters."""
        return json.loads(self.command("show", "counters", "--json"))

    def drops(self):
        """Packets that the daemon dropped, by reason."""
        counts = {line["name"]: int(line["count"]) for line in self.counters()["drops"]}
        return {name: count for name, count in counts.items() if count}

    def send(self, packet):
        """Sends an IP packet to the gateway."""
        ethertype = b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00"
        self.socket.send(mac_bytes(GATEWAY_MAC) + mac_bytes(PEER_MAC) + ethertype + packet)

    def arriving(self, limit_s):
        """Yields SPI and IP packet of all ESP that comes from the gateway within some time."""
        end = time.monotonic() + limit_s
        while select.select([self.socket], [], [], max(0, end - time.monotonic()))[0]:
            frame, (_, _, kind, *_) = self.socket.recvfrom(65536)
            packet = frame[14:]
            if kind == OUTGOING or frame[12:14] not in (b"\x08\x00", b"\x86\xdd"):
                continue
            at, protocol, _ = esp.upper(packet)
            at += esp.UDP_BYTES if protocol == esp.UDP else 0
            if protocol in (esp.ESP, esp.UDP) and len(packet) >= at + 4:
                yield struct.unpack("!I", packet[at:at + 4])[0], packet

    def receive(self, spi, limit_s):
        """The next packet from the gateway that carries an SPI; `None` if none comes."""
        found = (packet for carried, packet in self.arriving(limit_s) if carried == spi)
        return next(found, None)


def configuration(folder, rows):
    """The daemon's configuration."""
    return f"""[node]
name = "interop"
workers = 1
keys_dir = "{folder}/keys"
run_dir = "{folder}/run"
state_dir = "{folder}/state"

[metrics]
listen = "off"

[port.lan]
netdev = "lan"
side = "protected"

[port.wan]
netdev = "wan"
side = "unprotected"
""" + "".join(row.section() for row in rows)


def die_with_parent():
    """Ends this process when the one that started it ends, be it by SIGKILL."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def sweep():
    """Removes what runs left behind that are no more: namespaces and folders."""

    def is_gone(found):
        return found and not Path(f"/proc/{found[1]}").exists()

    for line in run("ip", "netns", "list").splitlines():
        if is_gone(re.match(rf"{PREFIX}(\d+)-(?:host|gw|peer)\b", line)):
            remove(line.split()[0])
    for folder in Path(tempfile.gettempdir()).glob("lockgate-*-*-*"):
        if is_gone(re.fullmatch(r"lockgate-(?:live|interop)-(\d+)-\w+", folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


def remove(name):
    """Removes a namespace, if it is there."""
    subprocess.run(
        ["ip", "netns", "delete", name], capture_output=True, timeout=COMMAND_S, check=False
    )


def ping(row, size, count):
    """An echo request of the peer's, and what tells its answer."""
    data = bytes((count + n) % 256 for n in range(size))
    header = (IP if row.inner == 4 else IPv6)(src=row.far, dst=row.source)
    if row.inner == 4:
        return bytes(header / ICMP(type=8, id=row.index, seq=count) / Raw(data)), data
    return bytes(header / ICMPv6EchoRequest(id=row.index, seq=count, data=data)), data


def answers(row, count, data, packet):
    """Whether an inner packet is the answer to a ping, whole and sound."""
    at, _, _ = esp.upper(packet)
    icmp = packet[at:]
    ends = (packet[12:16], packet[16:20]) if row.inner == 4 else (packet[8:24], packet[24:40])
    check(ends == (packed(row.source), packed(row.far)), "the answer is between others")
    hops = packet[8] if row.inner == 4 else packet[7]
    check(hops == (63 if row.mode == "tunnel" else 64), f"{hops} hops left")
    check(icmp[0] == (0 if row.inner == 4 else 129), f"ICMP type {icmp[0]}")
    check(struct.unpack("!HH", icmp[4:8]) == (row.index, count), "another ping's answer")
    check(icmp[8:] == data, "other data came back")
    covered = icmp if row.inner == 4 else esp.pseudo_header(packet, 58, len(icmp)) + icmp
    check(esp.checksum(covered) == 0, "ICMP checksum")


def play(laboratory, row):
    """Pings through one row. Returns a note."""
    numbers = [1, 2, 3]
    if row.esn:
        numbers = [1, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 32) + 1]
    material, gaps = row.material("out"), set()
    for count, number in enumerate(numbers, start=1):
        request, data = ping(row, SIZES[count % len(SIZES)], count)
        iv = row.iv(number)
        sealed, _ = matrix.scapy_seal(row, "in", row.material("in"), request, number, iv)
        laboratory.send(sealed)
        outer = laboratory.receive(row.spi_out, ANSWER_S)
        check(outer, f"no answer to ping {count} of {len(numbers)} (number {number})")
        iv, inner = matrix.rfc_open(row, material, outer, count)
        answers(row, count, data, inner)
        again, missed = matrix.scapy_seal(row, "out", material, inner, count, iv)
        gaps |= missed
        check(again == outer, f"sealed by scapy: {matrix.differ(outer, again)}")
    cannot = f" (by the RFC, scapy cannot: {'; '.join(sorted(gaps))})" if gaps else ""
    return f"{len(numbers)} pings{cannot}"


def forged(laboratory, rows):
    """Sends a changed packet of every row: none is answered, all are counted."""
    before = laboratory.drops().get("integrity", 0)
    for row in rows:
        request, _ = ping(row, 56, 9)
        number = (1 << 32 if row.esn else 0) + 1000
        sealed = matrix.rfc_seal(
            row, "in", row.material("in"), request, number, row.iv(number)
        )
        at = len(sealed) - 1 - row.index % row.suite.icv
        laboratory.send(sealed[:at] + bytes([sealed[at] ^ 1 << row.index % 8]) + sealed[at + 1:])
        time.sleep(0.0005)
    end = time.monotonic() + ANSWER_S
    while laboratory.drops().get("integrity", 0) - before < len(rows):
        check(time.monotonic() < end, f"{laboratory.drops()} instead of {len(rows)} more")
        time.sleep(0.05)
    spis = [f"{spi:#x}" for spi, _ in laboratory.arriving(0.1)]
    check(not spis, f"forgeries were answered: {spis}")
    return f"{len(rows)} dropped"


def outcomes(daemon, rows):
    """Yields name, failure or `None`, and a note, of every row. Bounded by `LIMIT_S`."""
    end = time.monotonic() + LIMIT_S
    try:
        with Laboratory(daemon, rows) as laboratory:
            for row in rows:
                yield f"live {row.name}", *outcome(laboratory, end, play, row)
            yield "live forged", *outcome(laboratory, end, forged, rows)
            yield "live daemon", *outcome(laboratory, end, still_runs, None)
    except (Failed, OSError, subprocess.SubprocessError) as failure:
        yield "live", f"no laboratory: {failure}", ""


def still_runs(laboratory, _):
    """The daemon runs and dropped nothing but what was forged."""
    check(laboratory.daemon.poll() is None, f"lockgated ended: {laboratory.said()}")
    found = {reason: n for reason, n in laboratory.drops().items() if reason != "integrity"}
    return f"other drops: {found}" if found else "no other drops"


def outcome(laboratory, end, act, what):
    """Failure or `None`, and a note, of one row."""
    try:
        check(time.monotonic() < end, f"not within {LIMIT_S} s")
        return None, act(laboratory, what)
    except (Failed, esp.Refused, OSError, KeyError) as failure:
        return str(failure), ""
