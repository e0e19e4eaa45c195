"""The rows `tshark …`: what we seal, decrypted by tshark with the keys beside it.

A row is a suite, a mode and the families. tshark reads the capture of the replay `out` of
`matrix.py` and must check the ICV, decrypt, and name every layer inside. It knows neither extended
sequence numbers nor ChaCha20-Poly1305.
"""

import subprocess

from rows import Failed, check, packed

ENCRYPTION = {
    "gcm": "AES-GCM with 16 octet ICV [RFC4106]",
    "cbc": "AES-CBC [RFC3602]",
    "null": "NULL",
}
INTEGRITY = {
    0: "NULL",
    256: "HMAC-SHA-256-128 [RFC4868]",
    384: "HMAC-SHA-384-192 [RFC4868]",
    512: "HMAC-SHA-512-256 [RFC4868]",
}
FIELDS = ["esp.spi", "esp.sequence", "frame.protocols", "ip.dst", "ipv6.dst", "_ws.malformed"]
FIELDS += ["esp.icv_good"]
INSIDE = {4: "ip", 6: "ipv6"}
LIMIT_S = 120


def sa_line(row, material):
    """An SA of ours as tshark's table `esp_sa` has it."""
    key, salt, integrity_key = row.suite.split(material)

    def hexed(data):
        return f"0x{data.hex()}" if data else ""

    words = [f"IPv{row.outer}", row.local, row.remote, f"{row.spi_out:#010x}"]
    words += [ENCRYPTION[row.suite.kind], hexed(key + salt)]
    words += [INTEGRITY[row.suite.hash], hexed(integrity_key)]
    return ",".join(f'"{word}"' for word in words)


def can_decrypt(row):
    """Whether tshark knows the suite."""
    return row.suite.kind in ENCRYPTION


def obstacle(row):
    """Why tshark cannot read a row; empty if it can."""
    if not can_decrypt(row):
        return "tshark knows no ChaCha20-Poly1305 in ESP"
    if row.esn:
        return "tshark knows no extended sequence numbers"
    return ""


def write_profile(folder, rows, evidence):
    """tshark's table, which it finds in its configuration's folder."""
    lines = [sa_line(row, evidence[row].key) for row in rows]
    table = folder / "wireshark"
    table.mkdir(exist_ok=True)
    (table / "esp_sa").write_text("\n".join(lines) + "\n")
    return table


def read(folder, rows, evidence):
    """What tshark makes of the packets: lists of fields by SPI."""
    table = write_profile(folder, rows, evidence)
    command = ["tshark", "-n", "-r", folder / "out.pcap", "-T", "fields", "-E", "separator=;"]
    command += ["-o", "esp.enable_encryption_decode:TRUE"]
    command += ["-o", "esp.enable_authentication_check:TRUE"]
    for name in FIELDS:
        command += ["-e", name]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "WIRESHARK_CONFIG_DIR": str(table)},
    )
    check(done.returncode == 0, f"tshark: {done.stderr}")
    found = {}
    for line in done.stdout.splitlines():
        fields = dict(zip(FIELDS, line.split(";")))
        if fields["esp.spi"]:
            found.setdefault(int(fields["esp.spi"].split(",")[0], 0), []).append(fields)
    return found


def layers_of(packet):
    """Names of the layers of one of our own packets, as far as this test needs them."""
    protocol = packet[9] if packet[0] >> 4 == 4 else packet[6]
    return {17: "udp", 6: "tcp", 1: "icmp", 58: "icmpv6", 60: "ipv6.dstopts"}.get(protocol)


def judge(row, evidence, lines):
    """Whether tshark named what is inside, packet by packet."""
    check(len(lines) == len(evidence.out_sent), f"{len(lines)} of {len(evidence.out_sent)} seen")
    for packet, fields in zip(evidence.out_sent, lines):
        protocols = fields["frame.protocols"]
        check(not fields["_ws.malformed"], f"malformed: {protocols}")
        layers = protocols.split(":")
        at = layers.index("esp")
        outside = [INSIDE[row.outer], "udp", "udpencap"] if row.nat_t else [INSIDE[row.outer]]
        # In transport mode the packet's own extension headers stand in front of ESP.
        check(layers[at - 1] == outside[-1] or row.mode == "transport", f"outside: {protocols}")
        inside = layers[at + 1:]
        named = layers_of(packet)
        if row.mode == "tunnel":
            check(inside[:1] == [INSIDE[row.inner]], f"inside: {protocols}")
            reached = fields["ip.dst" if row.inner == 4 else "ipv6.dst"].split(",")
            check(any(packed(word) == packed(row.far) for word in reached), f"to {reached}")
            inside = inside[1:]
        if named and named != "ipv6.dstopts":
            check(inside[:1] == [named], f"inside: {protocols}, not {named}")
        check(fields["esp.icv_good"] in ("1", "True"), f"ICV: {fields['esp.icv_good']!r}")
    return f"{len(lines)} decoded"


def outcomes(folder, evidence):
    """Yields name, failure or `None`, and a note, of every row that tshark knows."""
    rows = [row for row in evidence if not obstacle(row)]
    yield "tshark esp_sa", *replay_wrote(folder, evidence)
    try:
        found = read(folder, rows, evidence)
    except (Failed, OSError, subprocess.SubprocessError) as failure:
        found = failure
    for row in evidence:
        name = f"tshark {row.name}"
        if obstacle(row):
            continue
        try:
            check(isinstance(found, dict), str(found))
            yield name, None, judge(row, evidence[row], found.get(row.spi_out, []))
        except (Failed, ValueError) as failure:
            yield name, str(failure), ""


def replay_wrote(folder, evidence):
    """Failure or `None`, and a note: whether `lockgate replay` wrote the very same table, with
    every suite that tshark knows."""
    expected = [sa_line(row, found.key) for row, found in evidence.items() if can_decrypt(row)]
    written = (folder / "out.esp_sa").read_text().splitlines()
    if written != expected:
        return f"{len(written)} lines, {len(set(written) & set(expected))} as they should be", ""
    return None, f"{len(written)} lines"


def skipped(rows):
    """Names and reasons of what tshark does not know."""
    found = {}
    for row in rows:
        if obstacle(row):
            found["esn" if can_decrypt(row) else row.suite.name] = obstacle(row)
    return [(f"tshark {name}", reason) for name, reason in found.items()]
