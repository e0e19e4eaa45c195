#!/usr/bin/env python3
"""Lockgate's ESP against two other implementations: scapy seals and opens, tshark decodes.

    LOCKGATE=target/debug/lockgate target/venv/bin/python tests/interop/run.py

A row is a cipher suite, the family outside and the family inside. Everything goes through
`lockgate replay`, that is, through the real walk. Per row:

  scapy    opens what we seal: the packet that went in, but for TTL and header checksum;
           what we seal is sane: outer header, sequence numbers, IVs, padding;
           we open what scapy seals, byte for byte but for TTL and header checksum;
           with one bit changed anywhere behind the SPI it is dropped as `integrity`.
  tshark   decrypts what we seal with the keys beside it, and names what is inside.

The last line says `N passed, N failed, N skipped`; a row that cannot run is skipped, never passed.
"""

import ipaddress
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

logging.getLogger("scapy").setLevel(logging.ERROR)
try:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from scapy.config import conf
    from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
    from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt
    from scapy.layers.ipsec import ESP, SecurityAssociation
    from scapy.layers.l2 import Ether
    from scapy.packet import Raw
    from scapy.utils import rdpcap, wrpcap
except ImportError as error:
    MISSING = f"scapy is not there: {error}"
else:
    MISSING = None

SUITES = {"aes-128-gcm": 16, "aes-256-gcm": 32}
SALT_BYTES = 4
SPI_BYTES = 4
ICV_BYTES = 16
ESP_PROTOCOL = 50
NEXT_HEADER = {4: 4, 6: 41}
OUTER_BYTES = {4: 20, 6: 40}
# Lengths of payloads: every remainder of 4, so every length of padding, and large ones.
PAYLOADS = [0, 1, 2, 3, 4, 5, 63, 64, 65, 513, 1200, 1301]

LAN_MAC, WAN_MAC = "02:00:00:00:01:01", "02:00:00:00:02:01"
HOST_MAC, ROUTER_MAC = "02:00:00:00:01:05", "02:00:00:00:02:fe"
OURS = {4: "192.0.2.1", 6: "2001:db8:ff::1"}
ROUTER = {4: "192.0.2.254", 6: "2001:db8:ff::fe"}
HOST = {4: "10.1.0.5", 6: "2001:db8:1::5"}


class Failed(Exception):
    """What came is not what should have come."""


def check(condition, message):
    """Like assert, but never switched off."""
    if not condition:
        raise Failed(message)


class Peer:
    """The far end of one tunnel: what scapy is."""

    def __init__(self, index, suite, outer):
        self.name = f"peer{index}"
        self.suite, self.outer = suite, outer
        self.local = OURS[outer]
        self.remote = f"198.51.100.{index}" if outer == 4 else f"2001:db8:dd::{index}"
        # No SPI becomes another one by changing one bit.
        self.spi_in, self.spi_out = 0x11110000 + index * 0x303, 0x22220000 + index * 0x303
        size = SUITES[suite] + SALT_BYTES
        self.key_in = bytes((index * 16 + n) % 256 for n in range(size))
        self.key_out = bytes((index * 16 + 128 + n) % 256 for n in range(size))
        self.host = {4: f"10.2.{index}.5", 6: f"2001:db8:2:{index}::5"}
        self.sequence = 1

    def config(self):
        """Its sections of the configuration."""
        return f"""
[peer.{self.name}]
local = "{self.local}"
remote = "{self.remote}"
keys = "file:{self.name}.keys"
manual = "laboratory"
suite = "{self.suite}"
mode = "tunnel"

[[policy]]
name = "{self.name}"
peer = "{self.name}"
local = ["10.1.0.0/16", "2001:db8:1::/48"]
remote = ["{self.host[4]}", "{self.host[6]}"]
"""

    def key_file(self):
        """Its key file at our gateway."""
        return (
            f"in {self.spi_in:#x} {self.key_in.hex()}\n"
            f"out {self.spi_out:#x} {self.key_out.hex()}\n"
        )

    def association(self, spi, key, source, destination):
        """Scapy's SA."""
        header = {4: IP, 6: IPv6}[self.outer](src=source, dst=destination)
        return SecurityAssociation(
            ESP, spi=spi, crypt_algo="AES-GCM", crypt_key=key, tunnel_header=header
        )

    def seal(self, inner, sequence=None):
        """Lets scapy seal an IP packet; returns the outer packet's bytes."""
        if sequence is None:
            sequence, self.sequence = self.sequence, self.sequence + 1
        sa = self.association(self.spi_in, self.key_in, self.remote, self.local)
        iv = struct.pack("!Q", sequence ^ 0xA5A5A5A5A5A5)
        return bytes(sa.encrypt(inner, seq_num=sequence, iv=iv))

    def open(self, outer, key):
        """Lets scapy open an outer packet of ours; returns the inner packet's bytes."""
        sa = self.association(self.spi_out, key, self.local, self.remote)
        return bytes(sa.decrypt({4: IP, 6: IPv6}[self.outer](outer)))


def config(peers):
    """The gateway's configuration."""
    head = f"""[node]
name = "interop"

[port.lan]
netdev = "eth1"
side = "protected"
mac = "{LAN_MAC}"
addresses = ["10.1.0.1/16", "2001:db8:1::1/48"]

[port.wan]
netdev = "eth0"
side = "unprotected"
mac = "{WAN_MAC}"
addresses = ["{OURS[4]}/24", "{OURS[6]}/64"]

[[route]]
to = "0.0.0.0/0"
via = "{ROUTER[4]}"
port = "wan"

[[route]]
to = "::/0"
via = "{ROUTER[6]}"
port = "wan"
"""
    neighbours = [("wan", ROUTER, ROUTER_MAC), ("lan", HOST, HOST_MAC)]
    for port, address, mac in neighbours:
        for family in (4, 6):
            head += f"""
[[neighbour]]
port = "{port}"
address = "{address[family]}"
mac = "{mac}"
"""
    return head + "".join(peer.config() for peer in peers)


class Gateway:
    """Lockgate, one replay at a time."""

    def __init__(self, program, folder, peers):
        self.program, self.folder = program, folder
        self.file = folder / "gateway.toml"
        self.file.write_text(config(peers))
        for peer in peers:
            keys = folder / f"{peer.name}.keys"
            keys.touch(mode=0o600)
            keys.write_text(peer.key_file())

    def replay(self, port, packets):
        """Lets IP packets arrive by a port; returns the report, and what left by each port."""
        source, destination = {
            "lan": (HOST_MAC, LAN_MAC),
            "wan": (ROUTER_MAC, WAN_MAC),
        }[port]
        frames = [
            Ether(src=source, dst=destination, type=0x86DD if p[0] >> 4 == 6 else 0x0800) / Raw(p)
            for p in packets
        ]
        capture, out = self.folder / "in.pcap", self.folder / "out.pcap"
        wrpcap(str(capture), frames)
        command = [self.program, "replay", "--json", "--config", self.file]
        command += ["--in", f"{port}={capture}", out]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        check(done.returncode == 0, f"lockgate replay: {done.stdout}{done.stderr}")
        left = {}
        for name in ("lan", "wan"):
            file = self.folder / f"out.{name}.pcap"
            left[name] = [bytes(frame)[14:] for frame in rdpcap(str(file))] if file.exists() else []
        return json.loads(done.stdout), left

    def keys(self):
        """The keys that the last replay sealed with, by SPI."""
        found = {}
        for line in (self.folder / "out.keys").read_text().splitlines():
            words = line.split("#")[0].split()
            if words:
                direction, spi, suite, key = words[:4]
                check(direction == "out" and suite in SUITES, f"a line of out.keys: {line}")
                found[int(spi, 0)] = bytes.fromhex(key)
        return found


def packets(family, source, destination):
    """Packets of all kinds between two hosts, as bytes."""
    def header(**more):
        if family == 4:
            return IP(src=source, dst=destination, ttl=64, id=7, **more)
        if "tos" in more:
            more["tc"] = more.pop("tos")
        return IPv6(src=source, dst=destination, hlim=64, **more)

    made = [
        header() / UDP(sport=49152 + size, dport=49151) / Raw(bytes(n % 251 for n in range(size)))
        for size in PAYLOADS
    ]
    made.append(header(tos=0xB8) / TCP(sport=49150, dport=49151, flags="A") / Raw(b"dscp"))
    made += [header(tos=ecn) / UDP(sport=49150, dport=49151) / Raw(b"ecn") for ecn in (1, 2, 3)]
    if family == 4:
        made.append(header() / ICMP(type=8, id=1, seq=2) / Raw(b"echo"))
        options = [IPOption_NOP()] * 4
        made.append(header(options=options) / UDP(sport=49150, dport=49151) / Raw(b"nop"))
        made.append(header(flags="DF") / UDP(sport=49150, dport=49151, chksum=0x1234) / Raw(b"sum"))
    else:
        made.append(header() / ICMPv6EchoRequest(id=1, seq=2, data=b"echo"))
        made.append(header() / IPv6ExtHdrDestOpt() / UDP(sport=49150, dport=49151) / Raw(b"more"))
    made.append((header(proto=253) if family == 4 else header(nh=253)) / Raw(b"\x00" * 7))
    return [bytes(packet) for packet in made]


def checksum(header):
    """RFC 1071, over an even number of bytes."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def forwarded(packet):
    """The packet as a router forwards it: TTL less one, header checksum anew."""
    packet = bytearray(packet)
    if packet[0] >> 4 == 6:
        packet[7] -= 1
        return bytes(packet)
    length = (packet[0] & 15) * 4
    packet[8] -= 1
    packet[10:12] = b"\0\0"
    packet[10:12] = struct.pack("!H", checksum(bytes(packet[:length])) ^ 0xFFFF)
    return bytes(packet)


def outer_is_sane(peer, outer, inner):
    """The outer header of a packet that we sealed."""
    family = outer[0] >> 4
    check(family == peer.outer, f"IPv{family} outside")
    packet = {4: IP, 6: IPv6}[family](outer)
    check((packet.src, packet.dst) == (peer.local, peer.remote), f"{packet.src} > {packet.dst}")
    inside = inner[1] if inner[0] >> 4 == 4 else (inner[0] << 4 | inner[1] >> 4) & 0xFF
    if family == 4:
        check(outer[0] == 0x45, "options outside")
        check(packet.proto == ESP_PROTOCOL, f"protocol {packet.proto}")
        check(packet.len == len(outer), f"length {packet.len} of {len(outer)}")
        check(checksum(outer[:20]) == 0xFFFF, "outer header checksum")
        check("DF" in packet.flags, "fragments allowed outside")
        outside = packet.tos
    else:
        check(packet.nh == ESP_PROTOCOL, f"next header {packet.nh}")
        check(packet.plen == len(outer) - 40, f"length {packet.plen} of {len(outer)}")
        outside = packet.tc
    # DSCP is copied, ECN as RFC 6040 has it for a sender in normal mode: copied too.
    check(outside == inside, f"traffic class {outside:#x} around {inside:#x}")


def text_is_sane(peer, outer, key, inner):
    """Trailer and padding of a packet that we sealed, opened without scapy."""
    esp = outer[OUTER_BYTES[peer.outer]:]
    iv, sealed = esp[8:16], esp[16:]
    check(len(sealed) % 4 == 0, f"a text of {len(sealed)} bytes")
    cipher = AESGCM(key[:-SALT_BYTES])
    text = cipher.decrypt(key[-SALT_BYTES:] + iv, sealed, esp[:8])
    pad, next_header = text[-2], text[-1]
    check(next_header == NEXT_HEADER[inner[0] >> 4], f"next header {next_header}")
    check(pad < 4, f"{pad} bytes of padding where at most 3 are needed")
    check(text[-2 - pad:-2] == bytes(range(1, pad + 1)), f"padding {text[-2 - pad:-2].hex()}")
    check(text[:len(text) - 2 - pad] == inner, "the text is not the packet and its trailer")


def sealed_by_us(peer, family, sent, left, key):
    """Scapy opens what we sealed, and what we sealed is sane."""
    check(len(left) == len(sent), f"{len(left)} of {len(sent)} packets left")
    for packet, outer in zip(sent, left):
        expected = forwarded(packet)
        opened = peer.open(outer, key)
        check(opened == expected, f"opened {opened.hex()}, not {expected.hex()}")
        check(opened[0] >> 4 == family, "another family")
        outer_is_sane(peer, outer, expected)
        text_is_sane(peer, outer, key, expected)


def numbers_are_sane(peer, left):
    """Sequence numbers of one SA count from 1; no IV comes twice."""
    at = OUTER_BYTES[peer.outer]
    numbers = [struct.unpack("!I", outer[at + 4:at + 8])[0] for outer in left]
    check(numbers == list(range(1, len(left) + 1)), f"{peer.name}: numbers {numbers}")
    ivs = {outer[at + 8:at + 16] for outer in left}
    check(len(ivs) == len(left), f"{peer.name}: {len(left) - len(ivs)} IVs came twice")


def drops(report):
    """Packets dropped, by reason."""
    return {line["reason"]: line["packets"] for line in report["drops"] if line["packets"]}


def opened_by_us(sent, left):
    """What scapy sealed left as the packet that was sealed."""
    check(len(left) == len(sent), f"{len(left)} of {len(sent)} packets left")
    for packet, opened in zip(sent, left):
        check(opened == forwarded(packet), f"opened {opened.hex()}, not {packet.hex()} forwarded")


def forgeries(peer, inner):
    """A sealed packet, and copies of it with one bit changed: every byte of the SPI, then every
    byte behind it. The number has many bits set, so that no change makes it 0."""
    good = peer.seal(inner, sequence=0x01010101)
    start = OUTER_BYTES[peer.outer]
    bad = []
    for n, at in enumerate(range(start, len(good))):
        packet = bytearray(good)
        packet[at] ^= 1 << n % 8
        bad.append(bytes(packet))
    return good, bad[:SPI_BYTES], bad[SPI_BYTES:]


def forgeries_are_dropped(gateway, peer, inner_class, family):
    """No changed packet passes, and the unchanged one behind them all does."""
    inner = packets(family, peer.host[family], HOST[family])[7]
    good, strangers, bad = forgeries(peer, inner_class(inner))
    report, left = gateway.replay("wan", strangers + bad + [good])
    found = drops(report)
    expected = {"unknown_spi": len(strangers), "integrity": len(bad)}
    check(found == expected, f"forgeries were dropped as {found}, not {expected}")
    check(left == {"lan": [forwarded(inner)], "wan": []}, "a forgery passed, or the good one not")
    return len(bad)


def scapy_rows(gateway, peers):
    """Yields name and outcome (`None`: it is well) of every row."""
    classes = {4: IP, 6: IPv6}
    rows = [(peer, family) for peer in peers for family in (4, 6)]
    out = {row: packets(row[1], HOST[row[1]], row[0].host[row[1]]) for row in rows}
    back = {row: packets(row[1], row[0].host[row[1]], HOST[row[1]]) for row in rows}
    sealed = [row[0].seal(classes[row[1]](packet)) for row in rows for packet in back[row]]
    _, inward = gateway.replay("wan", sealed)
    # The last replay's files are what tshark reads afterwards.
    counts, failures = {}, {}
    for peer, family in rows:
        try:
            counts[peer, family] = forgeries_are_dropped(gateway, peer, classes[family], family)
        except Failed as failure:
            failures[peer, family] = failure
    _, outward = gateway.replay("lan", [packet for row in rows for packet in out[row]])
    keys = gateway.keys()
    by_peer = {peer: [p for p in outward["wan"] if is_to(peer, p)] for peer in peers}
    for peer, family in rows:
        row = (peer, family)
        try:
            if row in failures:
                raise failures[row]
            check(keys[peer.spi_out] != peer.key_out, "sealed with a configured key")
            numbers_are_sane(peer, by_peer[peer])
            first = 0 if family == 4 else len(out[peer, 4])
            left = by_peer[peer][first:first + len(out[row])]
            sealed_by_us(peer, family, out[row], left, keys[peer.spi_out])
            opened_by_us(back[row], [p for p in inward["lan"] if is_from(peer.host[family], p)])
            note = f"{len(left)} sealed, {len(back[row])} opened, {counts[row]} forged"
            yield row_name("scapy", *row), None, note
        except Failed as failure:
            yield row_name("scapy", *row), failure, ""


def is_to(peer, packet):
    """Whether an outer packet goes to this peer."""
    return packet[0] >> 4 == peer.outer and addresses(packet)[1] == peer.remote


def is_from(host, packet):
    """Whether a packet comes from this host."""
    return addresses(packet)[0] == host


def addresses(packet):
    """Source and destination as text."""
    parts = (packet[12:16], packet[16:20]) if packet[0] >> 4 == 4 else (packet[8:24], packet[24:40])
    return tuple(str(ipaddress.ip_address(part)) for part in parts)


def row_name(tool, peer, family):
    """What a row is called."""
    return f"{tool} {peer.suite} tunnel v{family}-in-v{peer.outer}"


def tshark_rows(folder, peers):
    """Yields name and outcome of every row; reads the last replay's files."""
    command = ["tshark", "-n", "-r", folder / "out.pcap", "-T", "fields", "-E", "separator=;"]
    command += ["-o", "esp.enable_encryption_decode:TRUE"]
    for line in (folder / "out.esp_sa").read_text().splitlines():
        command += ["-o", f"uat:esp_sa:{line}"]
    for field in ("esp.spi", "frame.protocols", "ip.dst", "ipv6.dst", "_ws.malformed"):
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line.split(";") for line in done.stdout.splitlines()]
    for peer in peers:
        for family in (4, 6):
            try:
                check(done.returncode == 0, f"tshark: {done.stderr}")
                yield row_name("tshark", peer, family), None, decoded(peer, family, lines)
            except Failed as failure:
                yield row_name("tshark", peer, family), failure, ""


def decoded(peer, family, lines):
    """What tshark made of the packets of one row."""
    expected = len(packets(family, HOST[family], peer.host[family]))
    inside = {4: "ip", 6: "ipv6"}
    found = 0
    for spi, protocols, v4, v6, malformed in lines:
        reached = (v4 if family == 4 else v6).split(",")
        if int(spi, 0) != peer.spi_out or peer.host[family] not in reached:
            continue
        check(not malformed, f"malformed: {protocols}")
        layers = protocols.split(":")
        outer = layers[:layers.index("esp")]
        check(outer[-1] == inside[peer.outer], f"outside: {protocols}")
        check(layers[len(outer) + 1] == inside[family], f"inside: {protocols}")
        found += 1
    check(found == expected, f"tshark names {found} of {expected} packets")
    return f"{found} decoded"


def rows_of(tool, peers):
    """Names of a tool's rows."""
    return [row_name(tool, peer, family) for peer in peers for family in (4, 6)]


def main():
    """Runs all rows and counts them."""
    suites_and_families = [(suite, outer) for suite in SUITES for outer in (4, 6)]
    peers = [Peer(n + 1, suite, outer) for n, (suite, outer) in enumerate(suites_and_families)]
    program = os.environ.get("LOCKGATE", "target/debug/lockgate")
    passed = failed = skipped = 0

    def skip(tool, reason):
        names = rows_of(tool, peers)
        print("\n".join(f"{name}: SKIPPED: {reason}" for name in names))
        return len(names)

    if MISSING:
        skipped += skip("scapy", MISSING) + skip("tshark", "scapy makes its packets")
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        return 0
    conf.verb = 0
    with tempfile.TemporaryDirectory(prefix="lockgate-interop-") as folder:
        try:
            gateway = Gateway(program, Path(folder), peers)
            outcomes = list(scapy_rows(gateway, peers))
        except (Failed, OSError, subprocess.SubprocessError) as failure:
            print(f"lockgate does not run: {failure}")
            print(f"0 passed, {len(rows_of('', peers))} failed, 0 skipped")
            return 1
        if shutil.which("tshark"):
            outcomes += tshark_rows(Path(folder), peers)
        else:
            skipped += skip("tshark", "tshark is not installed")
    for name, failure, note in outcomes:
        print(f"{name}: {'FAILED: ' + str(failure) if failure else 'ok'} {note}".rstrip())
        passed, failed = (passed, failed + 1) if failure else (passed + 1, failed)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
