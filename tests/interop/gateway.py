"""Lockgate, one replay at a time: configuration, captures in, captures and report out."""

import json
import struct
import subprocess

from rows import HOST, OURS, check

LAN_MAC, WAN_MAC = "02:00:00:00:01:01", "02:00:00:00:02:01"
HOST_MAC, ROUTER_MAC = "02:00:00:00:01:05", "02:00:00:00:02:fe"
ROUTER = {4: "192.0.2.254", 6: "2001:db8:ff::fe"}
LINKS = {"lan": (LAN_MAC, HOST_MAC), "wan": (WAN_MAC, ROUTER_MAC)}
ETHERNET, RAW = 1, 101
LINK_BYTES = {ETHERNET: 14, RAW: 0}
# Packets of one time are walked as one batch.
BATCH = 64
LIMIT_S = 240


def node(names):
    """What every configuration begins with: node and ports with these netdevs and MAC lines."""
    (lan, lan_mac), (wan, wan_mac) = names
    return f"""
[port.lan]
netdev = "{lan}"
side = "protected"
{lan_mac}addresses = ["10.1.0.1/16", "2001:db8:1::1/48"]

[port.wan]
netdev = "{wan}"
side = "unprotected"
{wan_mac}addresses = ["{OURS[4]}/24", "{OURS[6]}/64"]
"""


def configuration(rows):
    """The configuration of a replay."""
    macs = ("eth1", f'mac = "{LAN_MAC}"\n'), ("eth0", f'mac = "{WAN_MAC}"\n')
    text = '[node]\nname = "interop"\n' + node(macs)
    for net, family in (("0.0.0.0/0", 4), ("::/0", 6)):
        text += f'\n[[route]]\nto = "{net}"\nvia = "{ROUTER[family]}"\nport = "wan"\n'
    for port, address, mac in (("wan", ROUTER, ROUTER_MAC), ("lan", HOST, HOST_MAC)):
        for family in (4, 6):
            text += f'\n[[neighbour]]\nport = "{port}"\naddress = "{address[family]}"\n'
            text += f'mac = "{mac}"\n'
    return text + "".join(row.section() for row in rows)


def write_keys(folder, rows):
    """The key files of the peers."""
    for row in rows:
        keys = folder / f"{row.peer}.keys"
        keys.touch(mode=0o600)
        keys.write_text(row.key_file())


def mac_bytes(text):
    """A MAC address as it stands in a header."""
    return bytes.fromhex(text.replace(":", ""))


def ethernet(packet, port):
    """The frame in which a packet comes to a port."""
    ours, theirs = LINKS[port]
    ethertype = b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00"
    return mac_bytes(ours) + mac_bytes(theirs) + ethertype + packet


def write_capture(file, volleys, link):
    """A pcap file of lists of packets: every `BATCH` packets of a list have one time."""
    parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)]
    time_us = 0
    for volley in volleys:
        for number, packet in enumerate(volley):
            time_us += number % BATCH == 0
            size = len(packet)
            parts.append(struct.pack("<IIII", 1, time_us, size, size))
            parts.append(packet)
    file.write_bytes(b"".join(parts))


def read_capture(file):
    """The IP packets of a pcap file; none if it is not there."""
    if not file.exists():
        return []
    data = file.read_bytes()
    order = "<" if data[0] in (0x4D, 0xD4) else ">"
    skip = LINK_BYTES[struct.unpack(order + "I", data[20:24])[0]]
    found, at = [], 24
    while at < len(data):
        kept, size = struct.unpack(order + "II", data[at + 8:at + 16])
        check(kept == size, f"{file.name}: {kept} of {size} bytes kept")
        found.append(data[at + 16 + skip:at + 16 + kept])
        at += 16 + kept
    return found


class Gateway:
    """A configuration of Lockgate in a folder, and replays through it."""

    def __init__(self, program, folder, rows):
        self.program, self.folder = program, folder
        self.file = folder / "gateway.toml"
        self.file.write_text(configuration(rows))
        write_keys(folder, rows)

    def replay(self, arriving):
        """Lets lists of IP packets arrive by ports, one list after the other; returns the report,
        and what left by each port."""
        command = [self.program, "replay", "--json", "--config", self.file]
        for port, volleys in arriving.items():
            capture = self.folder / f"in.{port}.pcap"
            link = RAW if port == "host" else ETHERNET
            if link == ETHERNET:
                volleys = [[ethernet(packet, port) for packet in volley] for volley in volleys]
            write_capture(capture, volleys, link)
            command += ["--in", f"{port}={capture}"]
        command.append(self.folder / "out.pcap")
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        check(done.returncode == 0, f"lockgate replay: {done.stdout}{done.stderr}")
        ports = ("lan", "wan", "host")
        left = {name: read_capture(self.folder / f"out.{name}.pcap") for name in ports}
        return json.loads(done.stdout), left

    def keys(self):
        """The key material that the last replay sealed with, by SPI."""
        found = {}
        for line in (self.folder / "out.keys").read_text().splitlines():
            words = line.split("#")[0].split()
            if words:
                check(words[0] == "out", f"a line of out.keys: {line}")
                found[int(words[1], 0)] = bytes.fromhex(words[3])
        return found


def drops(report):
    """Packets dropped, by reason."""
    return {line["reason"]: line["packets"] for line in report["drops"] if line["packets"]}


def opened(report):
    """Packets that each inbound SA opened, by SPI."""
    lines = [line for line in report["sas"] if line["direction"] == "in"]
    return {int(line["spi"], 0): line["amount"]["packets"] for line in lines}


def source_of(packet):
    """Source address as it stands in the header."""
    return packet[12:16] if packet[0] >> 4 == 4 else packet[8:24]


def destination_of(packet):
    """Destination address as it stands in the header."""
    return packet[16:20] if packet[0] >> 4 == 4 else packet[24:40]


def by_address(packets, address_of):
    """Packets in lists by one of their addresses."""
    found = {}
    for packet in packets:
        found.setdefault(address_of(packet), []).append(packet)
    return found
