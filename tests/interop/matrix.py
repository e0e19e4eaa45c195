"""The rows `scapy …`: both directions of every row through the real walk, byte for byte.

Three replays carry all rows at once:

  out      what we seal, scapy and `esp.py` open; given our IV, key and number, each of them makes
           the very bytes that we sent;
  in       what scapy seals, we open, byte for byte but for what a router changes;
  forged   one bit changed in every byte from the SPI to the ICV, the wrong half of an extended
           number, a replay, a number left of the window, a dummy: each dropped for its reason,
           counted, and the honest packet behind them passes.
"""

import multiprocessing
import struct
from dataclasses import dataclass, field

import esp
import scapy_peer
from gateway import by_address, destination_of, drops, opened, source_of
from rows import BEHIND_NAT, Failed, check, forwarded, packed

# The number of the packet that is forged: many bits set, so that no change of one bit makes it
# small, and far enough beyond what came before that no change makes it old.
FORGED = 0x01010101
# Left of every window: the largest is 4096.
OLD = 5000
DUMMY = 59
NEXT_HEADER = {4: esp.IPV4, 6: esp.IPV6}
PROCESSES = 2


@dataclass
class Evidence:
    """What the replays showed of one row."""

    key: bytes = b""
    out_sent: list = field(default_factory=list)
    out_left: list = field(default_factory=list)
    in_expected: list = field(default_factory=list)
    in_left: list = field(default_factory=list)
    forged: int = 0
    failure: str = ""


def rfc_seal(row, direction, material, packet, sequence, iv):
    """What `esp.py` makes of an IP packet: the outer packet's bytes."""
    spi = row.spi_out if direction == "out" else row.spi_in
    if row.mode == "tunnel":
        ends = (row.local, row.remote) if direction == "out" else (row.remote, row.local)
        ends = [packed(end) for end in ends]
        header = esp.outer_header(*ends, packet, row.shown, sequence)
        payload, protocol = packet, NEXT_HEADER[packet[0] >> 4]
        written = 9 if row.outer == 4 else 6
    else:
        at, protocol, written = esp.upper(packet)
        header, payload = packet[:at], packet[at:]
    sealed = esp.seal(row.suite, material, spi, sequence, iv, payload, protocol, row.esn)
    return esp.carried(header, row.outer, written, row.ports(direction), sealed)


def rfc_open(row, material, outer, sequence):
    """IV and inner packet of what we sealed, by `esp.py`."""
    header, ports, sealed = esp.split_outer(outer)
    check(ports == row.ports("out"), f"UDP ports {ports}")
    spi, low = struct.unpack("!II", sealed[:8])
    check((spi, low) == (row.spi_out, sequence & 0xFFFFFFFF), f"SPI {spi:#x}, number {low}")
    iv, payload, protocol = esp.open_esp(row.suite, material, sealed, sequence, row.esn)
    if row.mode == "tunnel":
        check(protocol == NEXT_HEADER[row.inner], f"next header {protocol}")
        return iv, payload
    _, _, written = esp.upper(outer)
    total = len(header) + len(payload)
    return iv, esp.with_length(header, row.outer, protocol, written, total) + payload


def scapy_seal(row, direction, material, packet, sequence, iv):
    """What scapy makes of an IP packet, and what of that it cannot (see `scapy_peer`)."""
    gap = scapy_peer.gap(row, packet)
    if gap:
        return rfc_seal(row, direction, material, packet, sequence, iv), {gap}
    sealed = scapy_peer.seal(row, direction, material, packet, sequence, iv)
    if row.nat_t and row.outer == 6:
        return esp.with_checksum(sealed), {scapy_peer.GAP_UDP6}
    return sealed, set()


def differ(ours, theirs):
    """Where two packets differ, for a message."""
    places = [at for at, (one, other) in enumerate(zip(ours, theirs)) if one != other]
    return f"{len(ours)} and {len(theirs)} bytes, unlike at {places[:8]}: {ours.hex()}"


def sealed_by_us(row, evidence):
    """What we sealed, opened and made anew by the others. Returns the gaps of scapy."""
    sent, left = evidence.out_sent, evidence.out_left
    check(len(left) == len(sent), f"{len(left)} of {len(sent)} packets left")
    gaps, ivs, blocks = set(), [], set()
    for number, (packet, outer) in enumerate(zip(sent, left), start=1):
        inner = forwarded(packet) if row.mode == "tunnel" else packet
        iv, found = rfc_open(row, evidence.key, outer, number)
        check(found == inner, f"by the RFC it holds {found.hex()}, not {inner.hex()}")
        again = rfc_seal(row, "out", evidence.key, inner, number, iv)
        check(again == outer, f"by the RFC: {differ(outer, again)}")
        sealed, missing = scapy_seal(row, "out", evidence.key, inner, number, iv)
        check(sealed == outer, f"sealed by scapy: {differ(outer, sealed)}")
        gaps |= missing
        if not scapy_peer.gap(row, inner):
            found = scapy_peer.open_packet(row, "out", evidence.key, outer, inner, number)
            check(found == inner, f"opened by scapy: {differ(inner, found)}")
        check_iv(row, iv, number, ivs, blocks)
        ivs.append(iv)
        text = esp.split_outer(outer)[2][8:-row.suite.icv]
        blocks.update(text[at:at + 16] for at in range(0, len(text), 16))
    check_width(row, evidence)
    return gaps


def check_iv(row, iv, number, earlier, blocks):
    """An AEAD's IV comes once; here it is the number. CBC's is none that could be foretold."""
    if row.suite.aead:
        check(iv == struct.pack("!Q", number), f"IV {iv.hex()} of number {number}")
    if row.suite.kind != "cbc":
        return
    check(iv not in blocks, "an IV was a block of an earlier packet (RFC 3602 §3)")
    last = int.from_bytes(earlier[-1], "big") if earlier else 0
    step = (int.from_bytes(iv, "big") - last) % (1 << 128)
    check(min(step, (1 << 128) - step) > 1 << 64, f"the IV {iv.hex()} follows {last:#x} closely")


def check_width(row, evidence):
    """That the ICV covers the high half of the number exactly with ESN."""
    outer, inner = evidence.out_left[0], evidence.out_sent[0]
    for sequence in ((1 << 32) + 1,):
        try:
            esp.decrypt(
                row.suite, evidence.key, esp.split_outer(outer)[2], sequence, esn=True
            )
            check(False, "the ICV fits another high half of the number")
        except esp.Refused:
            pass
    if row.esn:
        try:
            scapy_peer.open_packet(row, "out", evidence.key, outer, inner, (1 << 32) + 1)
            check(False, "scapy's ICV fits another high half of the number")
        except esp.Refused:
            pass


def prepare_inbound(row):
    """What arrives of a row, and what shall leave."""
    packets, material = row.inbound(), row.material("in")
    numbers = row.numbers(len(packets))
    sealed, expected = [], []
    for count, (packet, number) in enumerate(zip(packets, numbers)):
        outer, gaps = scapy_seal(row, "in", material, packet, number, row.iv(number))
        if scapy_peer.GAP_UDP6 in gaps and count % 2:
            # As scapy leaves it: RFC 6936 lets tunnels do so, and the ICV is what counts.
            outer = scapy_peer.seal(row, "in", material, packet, number, row.iv(number))
        sealed.append(outer)
        expected.append(received(row, packet))
    if row.mode == "transport" and row.nat_t:
        for packet in (packets[5], packets[23]):
            number = numbers[-1] + 1
            numbers.append(number)
            private = with_source(packet, BEHIND_NAT[row.outer])
            outer, _ = scapy_seal(row, "in", material, private, number, row.iv(number))
            sealed.append(row.after_nat(outer))
            expected.append(packet)
    return sealed, expected


def with_source(packet, source):
    """The packet as another host would send it."""
    at, source = (12 if packet[0] >> 4 == 4 else 8), packed(source)
    packet = packet[:at] + source + packet[at + len(source):]
    if packet[0] >> 4 == 4:
        header = bytearray(packet[:20])
        header[10:12] = b"\0\0"
        packet = bytes(header[:10]) + struct.pack("!H", esp.checksum(header)) + packet[12:]
    return esp.with_checksum(packet)


def received(row, packet):
    """What we make of a packet of the peer's: a router's changes in tunnel mode; nothing in
    transport mode, but for the checksum that a NAT may have made wrong (RFC 3948 §3.1.2)."""
    if row.mode == "tunnel":
        return forwarded(packet)
    return esp.with_checksum(packet) if row.nat_t else packet


@dataclass
class Forgery:
    """Packets that arrive in one row's part of the replay `forged`."""

    lead: list
    strangers: list
    bad: list
    good: list
    behind: list
    expected: list


def forge(row, every_bit):
    """The forgeries of a row."""
    material, inner = row.material("in"), row.inbound()[9]
    base = 1 << 32 if row.esn else 0

    def sealed(number, high=None, esn=row.esn):
        return reseal(row, material, inner, number, number if high is None else high, esn)

    lead = [0x7FFFFFFF, 0xFFFFFFFF, (1 << 32) + 1] if row.esn else []
    number = base + FORGED
    good = sealed(number)
    start = len(good) - len(esp.split_outer(good)[2])
    bad = []
    for count, at in enumerate(range(start, len(good))):
        for bit in range(8) if every_bit else (count % 8,):
            packet = bytearray(good)
            packet[at] ^= 1 << bit
            bad.append(bytes(packet))
    strangers = bad[:32 if every_bit else 4]
    bad = bad[len(strangers):]
    if row.esn:
        bad += [sealed(number, high=number + (1 << 32)), sealed(number, high=FORGED)]
        bad.append(sealed(number, esn=False))
    else:
        bad.append(sealed(number, esn=True))
    dummy = reseal(row, material, b"", number + 1, number + 1, row.esn, protocol=DUMMY)
    behind = [good, sealed(number - OLD), dummy]
    expected = [received(row, inner)] * (len(lead) + 1)
    return Forgery([sealed(n) for n in lead], strangers, bad, [good], behind, expected)


def reseal(row, material, inner, number, authentic, esn, protocol=None):
    """A packet by `esp.py` whose ICV is for the number `authentic`, with or without its high
    half; with `protocol` one that holds nothing of that kind."""
    if row.mode == "tunnel":
        ends = packed(row.remote), packed(row.local)
        header = esp.outer_header(*ends, inner or b"\x45" + bytes(19))
        payload, kind, written = inner, NEXT_HEADER[row.inner], 9 if row.outer == 4 else 6
    else:
        packet = inner or row.inbound()[0]
        at, kind, written = esp.upper(packet)
        header, payload = packet[:at], inner[at:]
    kind = protocol or kind
    sealed = esp.seal(
        row.suite, material, row.spi_in, authentic, row.iv(number), payload, kind, esn
    )
    return esp.carried(header, row.outer, written, row.ports("in"), sealed)


def forged_alone(gateway, forgeries):
    """Lets all forgeries arrive. Returns what is wrong, as text."""
    volleys, wanted = [], {"lan": [], "host": [], "wan": []}
    reasons = {"unknown_spi": 0, "integrity": 0, "replayed": 0, "replay_too_old": 0, "dummy": 0}
    for row, forgery in forgeries:
        # Each step of the lead is a batch of its own: a batch's numbers are all told by the window
        # before it.
        volleys += [[packet] for packet in forgery.lead]
        volleys += [forgery.strangers + forgery.bad + forgery.good, forgery.behind]
        reasons["unknown_spi"] += len(forgery.strangers)
        reasons["integrity"] += len(forgery.bad)
        # With ESN a number left of the window is one of the next 2^32 (RFC 4303 appendix A2.2),
        # for which the ICV is wrong.
        for reason in ("replayed", "integrity" if row.esn else "replay_too_old", "dummy"):
            reasons[reason] += 1
        wanted["lan" if row.mode == "tunnel" else "host"] += forgery.expected
    report, left = gateway.replay({"wan": volleys})
    found, counts = drops(report), opened(report)
    reasons = {reason: count for reason, count in reasons.items() if count}
    if found != reasons:
        return f"dropped as {found}, not {reasons}"
    for row, forgery in forgeries:
        if counts.get(row.spi_in) != len(forgery.expected):
            return f"{row.name}: {counts.get(row.spi_in)} opened, not {len(forgery.expected)}"
    if left != wanted:
        return "a forgery passed, or an honest packet did not"
    return ""


def gather(gateway, rows):
    """Runs the three replays; returns the evidence of each row."""
    evidence = {row: Evidence() for row in rows}
    collect_forged(gateway, rows, evidence)
    collect_inbound(gateway, rows, evidence)
    # The last replay's files are what tshark reads afterwards.
    collect_outbound(gateway, rows, evidence)
    return evidence


def collect_forged(gateway, rows, evidence):
    """The replay of forgeries; if its counts are wrong, one a row, to name the row."""
    thorough, forgeries = set(), []
    for row in rows:
        forgeries.append((row, forge(row, every_bit=row.suite not in thorough)))
        thorough.add(row.suite)
    wrong = forged_alone(gateway, forgeries)
    for row, forgery in forgeries:
        evidence[row].forged = len(forgery.bad)
        if wrong:
            evidence[row].failure = forged_alone(gateway, [(row, forgery)])
    if wrong and not any(evidence[row].failure for row in rows):
        for row in rows:
            evidence[row].failure = f"all rows together: {wrong}"


def collect_inbound(gateway, rows, evidence):
    """What scapy seals arrives, row by row in turn, so that a batch holds many SAs."""
    with multiprocessing.get_context("forkserver").Pool(PROCESSES) as pool:
        prepared = pool.map(prepare_inbound, rows, chunksize=4)
    longest = max(len(sealed) for sealed, _ in prepared)
    volleys = [[sealed[n] for sealed, _ in prepared if n < len(sealed)] for n in range(longest)]
    _, left = gateway.replay({"wan": volleys})
    check(not left["wan"], f"{len(left['wan'])} packets went back to the world")
    found = by_address(left["lan"] + left["host"], source_of)
    for row, (_, expected) in zip(rows, prepared):
        evidence[row].in_expected = expected
        evidence[row].in_left = found.get(packed(row.far), [])


def collect_outbound(gateway, rows, evidence):
    """What we seal, row after row, so that a batch holds many packets of an SA."""
    arriving = {"lan": [], "host": []}
    for row in rows:
        evidence[row].out_sent = row.outbound()
        arriving["lan" if row.mode == "tunnel" else "host"] += evidence[row].out_sent
    _, left = gateway.replay({port: [packets] for port, packets in arriving.items()})
    keys, found = gateway.keys(), by_address(left["wan"], destination_of)
    for row in rows:
        evidence[row].key = keys.get(row.spi_out, b"")
        evidence[row].out_left = found.get(packed(row.remote), [])


def judge(item):
    """Name, failure or `None`, and a note, of one row."""
    row, evidence = item
    try:
        check(not evidence.failure, evidence.failure)
        check(evidence.key != row.material("out"), "sealed with a configured key")
        sent, left = evidence.in_expected, evidence.in_left
        check(len(left) == len(sent), f"{len(left)} of {len(sent)} packets were opened")
        for expected, found in zip(sent, left):
            check(expected == found, f"opened by us: {differ(found, expected)}")
        gaps = sealed_by_us(row, evidence)
    except (Failed, esp.Refused) as failure:
        return f"scapy {row.name}", str(failure), ""
    except Exception as error:  # one row's packet that scapy cannot read is that row's failure
        return f"scapy {row.name}", f"{type(error).__name__}: {error}", ""
    counts = f"{len(evidence.out_sent)} sealed, {len(sent)} opened, {evidence.forged} forged"
    cannot = f" (by the RFC, scapy cannot: {'; '.join(sorted(gaps))})" if gaps else ""
    return f"scapy {row.name}", None, counts + cannot


def outcomes(evidence):
    """Yields name, failure and note of every row, then those of all IVs together."""
    with multiprocessing.get_context("forkserver").Pool(PROCESSES) as pool:
        yield from pool.imap(judge, evidence.items(), chunksize=4)
    yield "scapy iv of cbc", *ivs_together(evidence)


def ivs_together(evidence):
    """No two IVs of CBC are equal over all rows, and each bit of them is set about every other
    time: within six and a half standard deviations of fair throws."""
    ivs = []
    for row, found in evidence.items():
        if row.suite.kind == "cbc":
            skip = esp.UDP_BYTES * row.nat_t + esp.HEADER_BYTES
            starts = [esp.upper(outer)[0] + skip for outer in found.out_left]
            ivs += [outer[at:at + 16] for at, outer in zip(starts, found.out_left)]
    if len(set(ivs)) != len(ivs):
        return f"{len(ivs) - len(set(ivs))} of {len(ivs)} came twice", ""
    numbers = [int.from_bytes(iv, "big") for iv in ivs]
    most = 6.5 * 0.5 / max(1, len(ivs)) ** 0.5
    for bit in range(128) if numbers else ():
        share = sum(number >> bit & 1 for number in numbers) / len(numbers)
        if abs(share - 0.5) > most:
            return f"bit {bit} is set in {share:.3f} of all IVs", ""
    return None, f"{len(ivs)} all different"
