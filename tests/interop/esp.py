"""ESP written from the RFCs on the primitives of `cryptography`: the third opinion.

Every packet of every row is sealed and opened here too, so that what Lockgate, scapy and this file
agree on does not rest on scapy alone. Where scapy cannot, this file is what Lockgate is held
against; each such place is a `GAP_…` in `scapy_peer.py`, with its clause.

    IP │ (UDP) │ SPI, sequence │ IV │ payload, padding, pad length, next header │ ICV

Not here: anything about SAs, windows or policies.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

ESP, UDP, TCP = 50, 17, 6
IPV4, IPV6 = 4, 41
OUTER_BYTES = {4: 20, 6: 40}
UDP_BYTES, HEADER_BYTES = 8, 8
EXTENSION_HEADERS = (0, 43, 60)
HOP_LIMIT = 64
DONT_FRAGMENT = 0x4000


class Refused(Exception):
    """A packet that is not as the RFC wants it, or not authentic."""


@dataclass(frozen=True)
class Suite:
    """A cipher suite: its sizes in bytes, and what it is called elsewhere."""

    name: str
    kind: str  # gcm, chacha, cbc or null
    key: int
    hash: int = 0  # bits of the HMAC's hash; 0: the cipher has its own ICV

    @property
    def aead(self):
        """Whether encryption and integrity are one."""
        return self.kind in ("gcm", "chacha")

    @property
    def salt(self):
        """Bytes of the salt behind the key (RFC 4106 §8.1, RFC 7634 §2)."""
        return 4 if self.aead else 0

    @property
    def integrity_key(self):
        """Bytes of the HMAC's key: the hash's output (RFC 4868 §2.1.1)."""
        return self.hash // 8

    @property
    def material(self):
        """Bytes of all that a key file holds for one SA."""
        return self.key + self.salt + self.integrity_key

    @property
    def iv(self):
        """Bytes of the IV in each packet (RFC 4106 §3.1, RFC 7634 §2, RFC 3602 §3, RFC 2410)."""
        return {"gcm": 8, "chacha": 8, "cbc": 16, "null": 0}[self.kind]

    @property
    def icv(self):
        """Bytes of the ICV (RFC 4106 §6, RFC 7634 §2, RFC 4868 §2.3)."""
        return 16 if self.aead else self.hash // 16

    @property
    def alignment(self):
        """What the text's length is a multiple of (RFC 4303 §2.4)."""
        return 16 if self.kind == "cbc" else 4

    def split(self, material):
        """Key, salt and integrity key."""
        if len(material) != self.material:
            raise Refused(f"{len(material)} bytes of key material for {self.name}")
        behind = self.key + self.salt
        return material[:self.key], material[self.key:behind], material[behind:]


SUITES = (
    [Suite(f"aes-{bits}-gcm", "gcm", bits // 8) for bits in (128, 192, 256)]
    + [Suite("chacha20-poly1305", "chacha", 32)]
    + [
        Suite(f"aes-{bits}-cbc-hmac-sha-{digest}", "cbc", bits // 8, digest)
        for bits in (128, 256)
        for digest in (256, 384, 512)
    ]
    + [Suite(f"null-hmac-sha-{digest}", "null", 0, digest) for digest in (256, 384, 512)]
)


def icv_of(suite, integrity_key, esp, high):
    """HMAC over the packet, and over the high half of an ESN behind it (RFC 4303 §2.2.1)."""
    data = esp if high is None else esp + struct.pack("!I", high)
    digest = {256: hashlib.sha256, 384: hashlib.sha384, 512: hashlib.sha512}[suite.hash]
    return hmac.new(integrity_key, data, digest).digest()[:suite.icv]


def aad_of(spi, sequence, esn):
    """What an AEAD covers beside the text (RFC 4106 §5, RFC 7634 §2.1)."""
    if esn:
        return struct.pack("!IQ", spi, sequence)
    return struct.pack("!II", spi, sequence & 0xFFFFFFFF)


def aead_of(suite, key):
    """The primitive."""
    return AESGCM(key) if suite.kind == "gcm" else ChaCha20Poly1305(key)


def high_half(sequence, esn):
    """The half of a number that no packet carries; `None` without ESN."""
    return sequence >> 32 if esn else None


def pad(suite, payload, next_header):
    """Payload and trailer: padding 1, 2, 3 …, pad length, next header (RFC 4303 §2.4 to §2.6)."""
    count = -(len(payload) + 2) % suite.alignment
    return payload + bytes(range(1, count + 1)) + bytes([count, next_header])


def seal(suite, material, spi, sequence, iv, payload, next_header, esn):
    """The ESP packet around a payload: `sequence` is the whole number, 64 bits with ESN."""
    key, salt, integrity_key = suite.split(material)
    text = pad(suite, payload, next_header)
    head = struct.pack("!II", spi, sequence & 0xFFFFFFFF) + iv
    if suite.aead:
        sealed = aead_of(suite, key).encrypt(salt + iv, text, aad_of(spi, sequence, esn))
        return head + sealed
    if suite.kind == "cbc":
        encryptor = Cipher(algorithms.AES(key), modes.CBC(iv)).encryptor()
        text = encryptor.update(text) + encryptor.finalize()
    esp = head + text
    return esp + icv_of(suite, integrity_key, esp, high_half(sequence, esn))


def decrypt(suite, material, esp, sequence, esn):
    """IV and text of an ESP packet whose ICV is right; else `Refused`."""
    key, salt, integrity_key = suite.split(material)
    iv = esp[HEADER_BYTES:HEADER_BYTES + suite.iv]
    spi = struct.unpack("!I", esp[:4])[0]
    if suite.aead:
        sealed = esp[HEADER_BYTES + suite.iv:]
        try:
            return iv, aead_of(suite, key).decrypt(salt + iv, sealed, aad_of(spi, sequence, esn))
        except InvalidTag:
            raise Refused("the ICV is wrong") from None
    authenticated, icv = esp[:-suite.icv], esp[-suite.icv:]
    if icv_of(suite, integrity_key, authenticated, high_half(sequence, esn)) != icv:
        raise Refused("the ICV is wrong")
    text = authenticated[HEADER_BYTES + suite.iv:]
    if suite.kind == "cbc":
        if len(text) % 16:
            raise Refused(f"a text of {len(text)} bytes")
        decryptor = Cipher(algorithms.AES(key), modes.CBC(iv)).decryptor()
        text = decryptor.update(text) + decryptor.finalize()
    return iv, text


def open_esp(suite, material, esp, sequence, esn):
    """IV, payload and next header of an ESP packet that is as the RFC wants it; else `Refused`."""
    iv, text = decrypt(suite, material, esp, sequence, esn)
    if len(text) < 2 or len(text) % suite.alignment:
        raise Refused(f"a text of {len(text)} bytes")
    count, next_header = text[-2], text[-1]
    payload = text[:len(text) - 2 - count]
    if text != pad(suite, payload, next_header):
        raise Refused(f"trailer {text[len(payload):].hex()} is not the shortest of its kind")
    return iv, payload, next_header


def checksum(data):
    """RFC 1071, ready for its field."""
    data = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def pseudo_header(packet, protocol, length):
    """RFC 9293 §3.1, RFC 8200 §8.1."""
    if packet[0] >> 4 == 4:
        return packet[12:20] + struct.pack("!BBH", 0, protocol, length)
    return packet[8:40] + struct.pack("!II", length, protocol)


def upper(packet):
    """Where the upper layer of an IP packet begins, its protocol, and where that is written."""
    if packet[0] >> 4 == 4:
        return (packet[0] & 15) * 4, packet[9], 9
    at, protocol, written = 40, packet[6], 6
    while protocol in EXTENSION_HEADERS:
        written, protocol = at, packet[at]
        at += 8 + packet[at + 1] * 8
    return at, protocol, written


def with_checksum(packet):
    """The packet with its UDP or TCP checksum made anew, if it has one (RFC 3948 §3.1.2)."""
    at, protocol, _ = upper(packet)
    field = at + {UDP: 6, TCP: 16}.get(protocol, 0)
    unused = packet[0] >> 4 == 4 and protocol == UDP and packet[field:field + 2] == b"\0\0"
    if field == at or unused:
        return packet
    packet = packet[:field] + b"\0\0" + packet[field + 2:]
    summed = checksum(pseudo_header(packet, protocol, len(packet) - at) + packet[at:])
    if summed == 0 and protocol == UDP:
        summed = 0xFFFF
    return packet[:field] + struct.pack("!H", summed) + packet[field + 2:]


def with_length(header, family, protocol, written, total):
    """An IP header that says what follows it and how long the packet is."""
    header = bytearray(header)
    header[written] = protocol
    if family == 6:
        header[4:6] = struct.pack("!H", total - 40)
        return bytes(header)
    header[2:4] = struct.pack("!H", total)
    header[10:12] = b"\0\0"
    header[10:12] = struct.pack("!H", checksum(bytes(header)))
    return bytes(header)


def carried(header, family, written, ports, esp):
    """An IP header, UDP where there are ports, and ESP: a whole packet.

    The UDP checksum is 0 over IPv4 (RFC 3948 §2.1), and over IPv6, where 0 is forbidden, the real
    one (RFC 8200 §8.1).
    """
    total = len(header) + len(esp) + (UDP_BYTES if ports else 0)
    if not ports:
        return with_length(header, family, ESP, written, total) + esp
    udp = struct.pack("!HHHH", *ports, UDP_BYTES + len(esp), 0)
    packet = with_length(header, family, UDP, written, total) + udp + esp
    return packet if family == 4 else with_checksum(packet)


def traffic_class(packet):
    """DSCP and ECN."""
    return packet[1] if packet[0] >> 4 == 4 else (packet[0] << 4 | packet[1] >> 4) & 0xFF


@dataclass(frozen=True)
class Shown:
    """What of the inner header shows outside (RFC 4301 §5.1.2, §8.1)."""

    dscp: int | None = None  # `None`: the inner packet's
    fragments: str = "set"  # don't fragment: set, copy or clear

    def traffic_class(self, inner):
        """DSCP by option, ECN by RFC 6040 §4.1 (copied)."""
        dscp = traffic_class(inner) & 0xFC if self.dscp is None else self.dscp << 2
        return dscp | traffic_class(inner) & 3

    def dont_fragment(self, inner):
        """IPv6 packets are never fragmented on their way, so `copy` sets it around them."""
        copied = inner[0] >> 4 == 6 or inner[6] & 0x40 != 0
        return {"set": True, "copy": copied, "clear": False}[self.fragments]


def outer_header(source, destination, inner, shown=Shown(), sequence=0):
    """The IP header of a tunnel, lengths and protocol not yet filled in.

    Hop limit 64. IPv4: with don't fragment the identification may stay 0 (RFC 6864 §4.1), without
    it must differ from packet to packet: the number's low 16 bits. IPv6: no flow label.
    """
    class_shown = shown.traffic_class(inner)
    if len(source) == 4:
        flags, number = (DONT_FRAGMENT, 0) if shown.dont_fragment(inner) else (0, sequence)
        start = struct.pack(
            "!BBHHHBBH", 0x45, class_shown, 0, number & 0xFFFF, flags, HOP_LIMIT, 0, 0
        )
        return start + source + destination
    return struct.pack("!IHBB", 6 << 28 | class_shown << 20, 0, 0, HOP_LIMIT) + source + destination


def split_outer(packet):
    """IP header, UDP ports or `None`, and the ESP packet, all lengths and checksums checked."""
    family = packet[0] >> 4
    at, protocol, _ = upper(packet)
    header = packet[:at]
    said = struct.unpack("!H", packet[2:4] if family == 4 else packet[4:6])[0]
    if said + (0 if family == 4 else 40) != len(packet):
        raise Refused(f"the outer header says {said} of {len(packet)} bytes")
    if family == 4 and checksum(header) != 0:
        raise Refused("outer header checksum")
    if protocol == ESP:
        return header, None, packet[at:]
    if protocol != UDP:
        raise Refused(f"protocol {protocol} outside")
    source, destination, length, summed = struct.unpack("!HHHH", packet[at:at + UDP_BYTES])
    if length != len(packet) - at:
        raise Refused(f"UDP says {length} of {len(packet) - at} bytes")
    if family == 4 and summed != 0:
        raise Refused(f"UDP checksum {summed:#x} over IPv4 (RFC 3948 §2.1)")
    if family == 6 and checksum(pseudo_header(packet, UDP, length) + packet[at:]) != 0:
        raise Refused("UDP checksum over IPv6")
    return header, (source, destination), packet[at + UDP_BYTES:]
