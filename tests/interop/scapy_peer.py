"""Scapy as the peer: it seals and opens. And what scapy 2.8 cannot, each with its clause.

A gap is told in its row: `(by the RFC, scapy cannot: …)`. For the packets concerned Lockgate is
held against `esp.py` alone.
"""

from scapy.layers.inet import IP
from scapy.layers.inet import UDP as ScapyUDP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, IPSecIntegrityError, SecurityAssociation

import esp
from rows import packed

# `_encrypt_esp` writes 0 whatever the family. The field alone is filled in by `esp.py`; all other
# bytes are scapy's.
GAP_UDP6 = "UDP checksum over IPv6 (RFC 8200 §8.1)"
# `_encrypt_esp` renames the next header in the IP header and leaves ESP in the extension header in
# front of UDP; `_decrypt_esp` throws the extension headers away.
GAP_EXTENSION = "UDP behind extension headers (RFC 3948 §2.1, RFC 8200 §4)"

CLASSES = {4: IP, 6: IPv6}
CRYPT = {"gcm": "AES-GCM", "chacha": "CHACHA20-POLY1305", "cbc": "AES-CBC", "null": "NULL"}
AUTH = {256: "SHA2-256-128", 384: "SHA2-384-192", 512: "SHA2-512-256"}


def association(row, direction, material, inner, sequence):
    """Scapy's SA for one packet. In tunnel mode the outer header's fields are ours by design, so
    scapy is told them: `esp.outer_header` lists them."""
    key, salt, integrity_key = row.suite.split(material)
    more = {}
    if row.suite.kind != "null":
        more["crypt_key"] = key + salt
    if integrity_key:
        more.update(auth_algo=AUTH[row.suite.hash], auth_key=integrity_key)
    ends = (row.local, row.remote) if direction == "out" else (row.remote, row.local)
    if row.mode == "tunnel":
        ends = [packed(end) for end in ends]
        header = esp.outer_header(*ends, inner, row.shown, sequence)
        more["tunnel_header"] = CLASSES[row.outer](header)
    if row.nat_t:
        source, destination = row.ports(direction)
        more["nat_t_header"] = ScapyUDP(sport=source, dport=destination)
    if row.esn:
        more.update(esn_en=True, esn=sequence >> 32)
    low = sequence & 0xFFFFFFFF
    spi = row.spi_out if direction == "out" else row.spi_in
    # A number of 0 as `seq_num` of `encrypt` would be taken for none.
    return SecurityAssociation(
        ESP, spi=spi, seq_num=low, crypt_algo=CRYPT[row.suite.kind], **more
    )


def gap(row, packet):
    """What scapy cannot of this packet of a row, if anything."""
    if row.mode == "transport" and row.nat_t and row.outer == 6 and esp.upper(packet)[0] > 40:
        return GAP_EXTENSION
    return None


def seal(row, direction, material, packet, sequence, iv):
    """What scapy makes of an IP packet: the outer packet's bytes."""
    sa = association(row, direction, material, packet, sequence)
    return bytes(sa.encrypt(CLASSES[packet[0] >> 4](packet), iv=iv))


def open_packet(row, direction, material, outer, inner, sequence):
    """What scapy finds in an outer packet: the inner packet's bytes.

    Raises `Refused` if the ICV is wrong to it.
    """
    sa = association(row, direction, material, inner, sequence)
    try:
        return bytes(sa.decrypt(CLASSES[row.outer](outer)))
    except IPSecIntegrityError as error:
        raise esp.Refused(str(error)) from None
