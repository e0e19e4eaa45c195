"""The rows of the matrix: what each is called, its SAs, its packets, its part of a configuration.

A row is a suite, a mode, the families outside and inside, 32-bit or extended sequence numbers, and
ESP alone or in UDP. It is a peer of its own, with its own SPIs, keys and addresses.
"""

import ipaddress
import random
from dataclasses import dataclass
from itertools import product

from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt
from scapy.packet import Raw

import esp

# Lengths of payloads: every remainder of 16, so every length of padding, and larger ones.
PAYLOADS = [*range(17), 63, 64, 65, 513, 1200, 1301]
PORT = 4500

OURS = {4: "192.0.2.1", 6: "2001:db8:ff::1"}
HOST = {4: "10.1.0.5", 6: "2001:db8:1::5"}
# Where a peer behind a NAT is in truth.
BEHIND_NAT = {4: "192.168.77.5", 6: "fd00:77::5"}


class Failed(Exception):
    """What came is not what should have come."""


def check(condition, message):
    """Like assert, but never switched off."""
    if not condition:
        raise Failed(message)


def packed(address):
    """An address as it stands in a header."""
    return ipaddress.ip_address(address).packed


def spi_of(index, direction):
    """An SPI. No two differ in one bit only: all have an even number of bits set."""
    spi = (0x4000 | direction << 12 | index) << 16 | index << 1
    return spi | bin(spi).count("1") % 2


@dataclass(frozen=True)
class Row:
    """One row; `index` counts from 1 over all rows."""

    index: int
    suite: esp.Suite
    mode: str
    outer: int
    inner: int
    esn: bool
    nat_t: bool
    shown: esp.Shown = esp.Shown()

    @property
    def name(self):
        """What it is called."""
        family = f"{self.inner}-in-{self.outer}" if self.mode == "tunnel" else f"v{self.outer}"
        numbers = "esn" if self.esn else "no-esn"
        udp = "nat-t" if self.nat_t else "no-nat-t"
        return f"{self.suite.name} {self.mode} {family} {numbers} {udp}{self.options}"

    @property
    def options(self):
        """What of its name says what shows outside, if that is not the ordinary."""
        if self.shown == esp.Shown():
            return ""
        dscp = "copy" if self.shown.dscp is None else self.shown.dscp
        return f" dscp-{dscp}" + (f" df-{self.shown.fragments}" if self.outer == 4 else "")

    @property
    def peer(self):
        """Its peer's name in the configuration."""
        return f"peer{self.index}"

    @property
    def local(self):
        """Our end."""
        return OURS[self.outer]

    @property
    def remote(self):
        """The peer's end."""
        if self.outer == 6:
            return str(ipaddress.ip_address(f"2001:db8:dd::{self.index:x}"))
        net = ("198.51.100", "203.0.113")[self.index // 250]
        return f"{net}.{self.index % 250 + 1}"

    @property
    def source(self):
        """Who sends what we seal."""
        return HOST[self.inner] if self.mode == "tunnel" else self.local

    @property
    def far(self):
        """Whom what we seal is for."""
        if self.mode == "transport":
            return self.remote
        if self.inner == 6:
            return str(ipaddress.ip_address(f"2001:db8:2:{self.index:x}::5"))
        return f"10.{2 + self.index // 250}.{self.index % 250}.5"

    @property
    def spi_in(self):
        """Of what the peer seals."""
        return spi_of(self.index, 0)

    @property
    def spi_out(self):
        """Of what we seal."""
        return spi_of(self.index, 1)

    @property
    def remote_port(self):
        """The peer's UDP port: that of the RFC, or one that a NAT has chosen."""
        return PORT if self.index % 2 else 20000 + self.index

    def ports(self, direction):
        """Source and destination port of the UDP header, or `None`."""
        if not self.nat_t:
            return None
        return (PORT, self.remote_port) if direction == "out" else (self.remote_port, PORT)

    def material(self, direction):
        """The configured key material of one direction: the same in every run."""
        return random.Random(f"{self.index} {direction}").randbytes(self.suite.material)

    def iv(self, sequence):
        """An IV of the peer's: any bytes, for an AEAD never twice."""
        return random.Random(f"{self.index} iv {sequence}").randbytes(self.suite.iv)

    def high(self, sequence):
        """The sequence number as the packet's ICV knows it: 64 bits, or 32."""
        return sequence if self.esn else sequence & 0xFFFFFFFF

    def section(self):
        """Its sections of the configuration."""
        if self.mode == "tunnel":
            local = '["10.1.0.0/16"]' if self.inner == 4 else '["2001:db8:1::/48"]'
        else:
            local = f'["{self.local}"]'
        shown = ""
        if self.options:
            dscp = '"copy"' if self.shown.dscp is None else self.shown.dscp
            shown = f"dscp = {dscp}\n"
            shown += f'df = "{self.shown.fragments}"\n' if self.outer == 4 else ""
        udp = f'encapsulation = "udp"\nremote_port = {self.remote_port}\nnat_keepalive = "off"\n'
        return f"""
[peer.{self.peer}]
local = "{self.local}"
remote = "{self.remote}"
keys = "file:{self.peer}.keys"
manual = "laboratory"
suite = "{self.suite.name}"
mode = "{self.mode}"
esn = {str(self.esn).lower()}
{shown}{udp if self.nat_t else ""}
[[policy]]
name = "{self.peer}"
peer = "{self.peer}"
local = {local}
remote = ["{self.far}"]
"""

    def key_file(self):
        """Its key file at our gateway."""
        return (
            f"in {self.spi_in:#x} {self.material('in').hex()}\n"
            f"out {self.spi_out:#x} {self.material('out').hex()}\n"
        )

    def outbound(self):
        """Packets for us to seal, as bytes."""
        return packets(self.inner, self.source, self.far)

    def inbound(self):
        """Packets for the peer to seal, as bytes."""
        return packets(self.inner, self.far, self.source)

    def numbers(self, count):
        """Sequence numbers for so many packets of the peer's.

        With ESN the last half of them are beyond 2^32, where the window is led by steps of about
        2^31 (RFC 4303 appendix A2.2 knows a number only beside the window).
        """
        if not self.esn:
            return [*range(1, count - 2), 0x7FFFFFFF, 0xFFFFFFF0, 0xFFFFFFF1]
        low = count // 2
        steps = [0x7FFFFFFF, 0xFFFFFFF0, 0xFFFFFFFF]
        return [*range(1, low + 1), *steps, *range(1 << 32, (1 << 32) + count - low - 3)]

    def after_nat(self, packet):
        """A packet of the peer's as a NAT has left it that stands before the peer: with another
        source address, and the checksums below still of the earlier one."""
        at = 12 if self.outer == 4 else 8
        source = packed(self.remote)
        packet = packet[:at] + source + packet[at + len(source):]
        if self.outer == 6:
            # A NAT of IPv6 does mend the checksum of the UDP header that it sees.
            return esp.with_checksum(packet)
        header = bytearray(packet[:20])
        header[10:12] = b"\0\0"
        return bytes(header[:10]) + esp.checksum(bytes(header)).to_bytes(2, "big") + packet[12:]


def all_rows():
    """The whole matrix."""
    shapes = [("tunnel", outer, inner) for outer in (4, 6) for inner in (4, 6)]
    shapes += [("transport", family, family) for family in (4, 6)]
    found = [
        (suite, *shape, esn, nat_t)
        for suite, shape, esn, nat_t in product(esp.SUITES, shapes, (False, True), (False, True))
    ]
    # What shows outside has nothing to do with the suite. Don't fragment is a flag of IPv4.
    options = {
        4: [esp.Shown(46, "copy"), esp.Shown(None, "clear"), esp.Shown(0, "clear")],
        6: [esp.Shown(46), esp.Shown(0)],
    }
    found += [
        (esp.SUITES[0], *shape, False, shown.dscp == 0, shown)
        for shape in shapes[:4]
        for shown in options[shape[1]]
    ]
    return [Row(number, *row) for number, row in enumerate(found, start=1)]


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
    made.append(header() / UDP(sport=49150, dport=49151, chksum=0x1234) / Raw(b"sum"))
    if family == 4:
        made.append(header() / ICMP(type=8, id=1, seq=2) / Raw(b"echo"))
        options = [IPOption_NOP()] * 4
        made.append(header(options=options) / UDP(sport=49150, dport=49151) / Raw(b"nop"))
        made.append(header(flags="DF") / UDP(sport=49150, dport=49151, chksum=0) / Raw(b"none"))
    else:
        made.append(header() / ICMPv6EchoRequest(id=1, seq=2, data=b"echo"))
        made.append(header() / IPv6ExtHdrDestOpt() / UDP(sport=49150, dport=49151) / Raw(b"more"))
        made.append(header(fl=0x12345) / TCP(sport=49150, dport=49151) / Raw(b"label"))
    made.append((header(proto=253) if family == 4 else header(nh=253)) / Raw(b"\x00" * 7))
    return [bytes(packet) for packet in made]


def forwarded(packet):
    """The packet as a router forwards it: TTL less one, header checksum anew."""
    packet = bytearray(packet)
    if packet[0] >> 4 == 6:
        packet[7] -= 1
        return bytes(packet)
    length = (packet[0] & 15) * 4
    packet[8] -= 1
    packet[10:12] = b"\0\0"
    packet[10:12] = esp.checksum(bytes(packet[:length])).to_bytes(2, "big")
    return bytes(packet)
