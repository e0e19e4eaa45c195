"""The rows `overlay …`: a daemon with virtual networks, and scapy as the hosts around it.

    hosts 10.1.0.11, .12, 2001:db8:1::11, ::12 ── lan  gateway: lockgated, entrances .1 and ::1
          a raw socket, scapy                            VXLAN: network 7, Geneve: network 8

Scapy builds what a host sends and reads what the gateway sends on: every field, and every checksum
by computing it anew. It makes the same bytes from the frame that it sent and the few fields that
the gateway is to change. Rows `kernel` see the same from the program in the kernel, and its counter
tells that no worker had the packets.
"""

import ctypes
import os
import platform
import random
import select
import socket
import struct
import subprocess
import time

from scapy.contrib.geneve import GENEVE, GeneveOptions
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
    IPv6ExtHdrDestOpt,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Raw

import live
from live import inside_namespace
from rows import Failed, check

GATEWAY_MAC = "02:00:00:00:01:01"
ENTRANCE = {4: "10.1.0.1", 6: "2001:db8:1::1"}
NETWORK = {"vxlan": 7, "geneve": 8}
UDP_PORT = {"vxlan": 4789, "geneve": 6081}
# A frame that is in no overlay: Ethernet in Geneve.
ETHERNET = 0x6558
ANSWER_S, WARM_S = 5, 30
# bpf(2): its number, two commands, and the kind of programs and attachments.
NR_BPF = {"x86_64": 321}.get(platform.machine(), 280)
PROG_LOAD, LINK_CREATE, PROG_TYPE_XDP, ATTACH_XDP = 5, 28, 6, 37
FAMILIES = (4, 6)
IP_CLASS = {4: IP, 6: IPv6}
# Options of Geneve that go on: unknown ones, and those of Arion, critical or not.
OPTIONS = [
    [],
    [(0x0102, 0x03, b"")],
    [(0x0102, 0x03, bytes(4)), (0xFFFF, 0x7F, bytes(range(124)))],
    [(0x0111, 0x48, b"flow"), (0x0111, 0x49, bytes(8))],
    [(0x0111, 0xC8, b"flow"), (0x0111, 0xC9, bytes(16))],
    [(0x0102, 0x03, bytes(124)), (0x0103, 0x03, bytes(116))],
]


def host(family, number):
    """A host's address."""
    return f"10.1.0.1{number}" if family == 4 else f"2001:db8:1::1{number}"


def host_mac(number):
    """A host's link address."""
    return f"02:00:00:00:01:1{number}"


def tenant(family, number):
    """A tenant's address. Tenants 1 and 2 are behind the hosts of these numbers by IPv4, tenants 3
    and 4 behind the same by IPv6."""
    return f"172.16.0.{number}" if family == 4 else f"fd00:7::{number}"


def tenant_mac(number):
    """A tenant's link address."""
    return f"02:07:00:00:00:0{number}"


def from_to(outer):
    """The tenants behind host 1 and host 2 by an IP version."""
    return (1, 2) if outer == 4 else (3, 4)


def network(use):
    """The part of the configuration that tells of overlays."""
    text = f"""
[port.lan]
netdev = "lan"
side = "protected"

[kernel]
use = "{use}"
promote_busy = true
"""
    entrances = ", ".join(f'"{entrance}"' for entrance in ENTRANCE.values())
    for kind, vni in NETWORK.items():
        text += f'\n[overlay.{kind}]\nkind = "{kind}"\nport = "lan"\n'
        text += f'entrances = [{entrances}]\n\n[vni.{vni}]\noverlay = "{kind}"\n'
    return text


class Laboratory(live.Laboratory):
    """A gateway and the link to its hosts, which are a raw socket."""

    def __init__(self, daemon, use):
        super().__init__(daemon, [])
        self.use, self.link = use, None
        del self.names["host"]

    def __enter__(self):
        super().__enter__()
        try:
            for family in FAMILIES:
                for outer, numbers in ((4, (1, 2)), (6, (3, 4))):
                    for number in numbers:
                        self.put(family, number, host(outer, 2 - number % 2))
        except BaseException:
            self.close()
            raise
        return self

    def close(self):
        """Ends the daemon and removes everything, as far as it came."""
        if self.link is not None:
            os.close(self.link)
            self.link = None
        super().close()

    def put(self, family, number, behind):
        """Tells the gateway where a tenant is, in both networks."""
        for vni in NETWORK.values():
            self.command("endpoint", "put", str(vni), tenant(family, number),
                         "--host", behind, "--mac", tenant_mac(number))

    def configuration(self):
        """The daemon's configuration."""
        folder = self.folder
        return f"""[node]
name = "overlay"
workers = 1
keys_dir = "{folder}/keys"
run_dir = "{folder}/run"
state_dir = "{folder}/state"

[metrics]
listen = "off"
""" + network(self.use)

    def connect(self):
        """Namespaces, the link, addresses and neighbours."""
        for role, name in self.names.items():
            live.run("ip", "netns", "add", name)
            self.ip(role, "link set lo up\n")
        self.inside("peer", "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1",
                    "net.ipv6.conf.default.disable_ipv6=1")
        self.ip("gw", f"link add lan type veth peer name eth0 netns {self.names['peer']}\n"
                      f"link set lan address {GATEWAY_MAC} up\n"
                      f"addr add {ENTRANCE[4]}/16 dev lan\n"
                      f"addr add {ENTRANCE[6]}/48 dev lan nodad\n")
        for family in FAMILIES:
            for number in (1, 2):
                self.ip("gw", f"neigh replace {host(family, number)} lladdr {host_mac(number)} "
                              "dev lan nud permanent\n")
        self.ip("peer", "link set eth0 up\n")
        for role, interface in (("gw", "lan"), ("peer", "eth0")):
            self.inside(role, "ethtool", "-K", interface, "tx", "off")
        if self.use == "on":
            self.link = inside_namespace(self.names["peer"], lambda: take_from_xdp("eth0"))
        self.socket = self.raw_socket()

    def exchange(self, frame):
        """Sends a frame, and returns the next overlay frame from the gateway, or `None`."""
        while select.select([self.socket], [], [], 0)[0]:
            self.socket.recv(65536)
        self.socket.send(bytes(frame))
        end = time.monotonic() + ANSWER_S
        while select.select([self.socket], [], [], max(0, end - time.monotonic()))[0]:
            found, (_, _, direction, *_) = self.socket.recvfrom(65536)
            if direction != live.OUTGOING and is_overlay(found):
                return found
        return None

    def dropped(self, frame, reason):
        """Sends a frame that must be dropped for a reason, counted once."""
        before = self.drops().get(reason, 0)
        self.socket.send(bytes(frame))
        end = time.monotonic() + ANSWER_S
        while (now := self.drops().get(reason, 0)) == before:
            check(time.monotonic() < end, f"not dropped as {reason}: {self.drops()}")
        check(now == before + 1, f"{reason} rose by {now - before}")
        check(not select.select([self.socket], [], [], 0.05)[0] or
              not is_overlay(self.socket.recv(65536)), f"{reason}, and sent on all the same")


def take_from_xdp(interface):
    """Lets a veth take frames that an XDP program at its other end sends: it does so only with a
    program of its own, which passes everything. Returns the link that holds it there."""
    # r0 = XDP_PASS; exit.
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    program = bpf(PROG_LOAD, struct.pack(
        "<IIQQ", PROG_TYPE_XDP, 2, ctypes.addressof(code), ctypes.addressof(licence)))
    try:
        index = socket.if_nametoindex(interface)
        return bpf(LINK_CREATE, struct.pack("<IIII", program, index, ATTACH_XDP, 0))
    finally:
        os.close(program)


def bpf(command, attributes):
    """The system call bpf(2); returns what it returns."""
    attributes = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    done = ctypes.CDLL(None, use_errno=True).syscall(NR_BPF, command, attributes, 128)
    check(done >= 0, f"bpf: {os.strerror(ctypes.get_errno())}")
    return done


def is_overlay(frame):
    """Whether a frame is UDP from the gateway to a port of an overlay."""
    read = Ether(frame)
    return read.src == GATEWAY_MAC and UDP in read and read[UDP].dport in UDP_PORT.values()


def header(kind, options=()):
    """An overlay header, with the options of Geneve."""
    if kind == "vxlan":
        return VXLAN(vni=NETWORK[kind], flags=8)
    options = [GeneveOptions(classid=a, type=b, data=data) for a, b, data in options]
    return GENEVE(vni=NETWORK[kind], proto=ETHERNET, options=options)


def wrapped(kind, outer, frame, options=(), tos=0, sums=True):
    """A tenant's frame as host 1 sends it to the entrance."""
    ends = {"src": host(outer, 1), "dst": ENTRANCE[outer]}
    ip = IP(**ends, ttl=64, id=4711, tos=tos) if outer == 4 else IPv6(**ends, hlim=64, tc=tos)
    udp = UDP(sport=51234, dport=UDP_PORT[kind])
    if not sums:
        udp.chksum = 0
    return Ether(src=host_mac(1), dst=GATEWAY_MAC) / ip / udp / header(kind, options) / frame


def onward(sent, outer, to):
    """The frame that the gateway makes of one: to host 2, and to this tenant. All that is computed
    from the content is computed anew."""
    frame = again(sent)
    frame.src, frame.dst = GATEWAY_MAC, host_mac(2)
    ip = frame[IP_CLASS[outer]]
    ip.src, ip.dst = ENTRANCE[outer], host(outer, 2)
    if outer == 4:
        ip.ttl -= 1
    else:
        ip.hlim -= 1
    frame[Ether:2].dst = tenant_mac(to)
    return frame


def again(frame, udp_sum=None):
    """A frame read from its bytes, whose outer checksums are to be computed when it is built. UDP
    without a checksum stays so."""
    read = Ether(bytes(frame))
    if IP in read and read.type == 0x0800:
        read[IP].chksum = None
    if read[UDP].chksum or udp_sum:
        read[UDP].chksum = None
    return read


def all_sums(frame):
    """A frame read from its bytes, of which all checksums, inside too, are computed anew."""
    read = again(frame)
    layer = read[Ether:2].payload
    while layer:
        if not isinstance(layer, Raw) and "chksum" in layer.fields:
            layer.chksum = None
        if "cksum" in layer.fields:
            layer.cksum = None
        layer = layer.payload
    return bytes(read)


def carried(laboratory, sent, outer, to, what):
    """Sends a frame; what comes back is what scapy makes of it."""
    found = laboratory.exchange(sent)
    check(found, f"{what}: nothing comes back: {laboratory.drops()}")
    wanted = bytes(onward(sent, outer, to))
    check(found == wanted, f"{what}: {differ(found, wanted)}")
    check(all_sums(found) == found, f"{what}: a checksum: {differ(found, all_sums(found))}")


def differ(found, wanted):
    """Where two frames differ first, and what scapy reads there."""
    at = next((n for n, (a, b) in enumerate(zip(found, wanted)) if a != b), None)
    place = f"byte {at}" if at is not None else f"{len(found)} bytes, not {len(wanted)}"
    return f"{place}: {Ether(found).summary()} | {found.hex()} | {wanted.hex()}"


def inside(family, numbers, upper, more=None):
    """A tenant's frame with a packet."""
    source, to = numbers
    ends = {"src": tenant(family, source), "dst": tenant(family, to)}
    ip = IP(**ends, ttl=9, id=77) if family == 4 else IPv6(**ends, hlim=9)
    if more:
        if family == 4:
            ip.options = [IPOption_NOP()] * 4
        else:
            ip = ip / IPv6ExtHdrDestOpt()
    return Ether(src=tenant_mac(source), dst="02:09:09:09:09:09") / ip / upper


def uppers(family):
    """What tenants send: upper layers and whether the IP header is a longer one."""
    data = random.Random(7).randbytes(1300)
    echo = ICMP(id=3) if family == 4 else ICMPv6EchoRequest(id=3)
    for size in (0, 1, 21, 1300):
        yield f"UDP {size}", UDP(sport=1, dport=2) / Raw(data[:size]), False
    yield "TCP SYN", TCP(sport=1000, dport=80, flags="S", options=[("MSS", 1300)]), False
    yield "TCP data", TCP(sport=1000, dport=80, flags="PA", seq=9) / Raw(data[:333]), False
    yield "echo", echo / Raw(data[:56]), False
    yield "a longer IP header", UDP(sport=1, dport=2) / Raw(data[:9]), True


def row_carried(laboratory, kind, outer, inner):
    """Tenants' packets of all sorts, with DSCP and ECN outside, with a checksum of UDP and
    without."""
    count, numbers = 0, from_to(outer)
    for what, upper, more in uppers(inner):
        for tos in (0, 0xBB):
            for sums in (True, False):
                frame = inside(inner, numbers, upper, more)
                sent = wrapped(kind, outer, frame, tos=tos, sums=sums)
                carried(laboratory, sent, outer, numbers[1], f"{what}, TOS {tos}, sums {sums}")
                count += 1
    return f"{count} frames"


def row_other_family(laboratory, kind, outer, inner):
    """To a host of the other IP version: the whole outer header is ours."""
    (source, _), (_, to) = from_to(outer), from_to(10 - outer)
    there = 10 - outer
    for sums in (True, False):
        frame = inside(inner, (source, to), UDP(sport=1, dport=2) / Raw(b"far"))
        sent = wrapped(kind, outer, frame, tos=0xB8, sums=sums)
        found = laboratory.exchange(sent)
        check(found, f"nothing comes back: {laboratory.drops()}")
        read = Ether(found)
        ends = {"src": ENTRANCE[there], "dst": host(there, 2)}
        if there == 4:
            ip = IP(**ends, ttl=63, id=read[IP].id, flags="DF", tos=0xB8)
        else:
            ip = IPv6(**ends, hlim=63, tc=0xB8, fl=read[IPv6].fl)
        udp = UDP(sport=51234, dport=UDP_PORT[kind])
        if there == 4:
            udp.chksum = 0
        frame.dst = tenant_mac(to)
        wanted = Ether(src=GATEWAY_MAC, dst=host_mac(2)) / ip / udp / header(kind) / frame
        check(found == bytes(wanted), differ(found, bytes(wanted)))
    return "2 frames"


def row_asked(laboratory, kind, outer, inner):
    """A tenant asks for the link address of another: the gateway answers for it."""
    source, to = from_to(outer)
    if inner == 4:
        question = Ether(src=tenant_mac(source), dst="ff:ff:ff:ff:ff:ff") / ARP(
            op="who-has", hwsrc=tenant_mac(source), psrc=tenant(4, source), pdst=tenant(4, to)
        )
        answer = Ether(src=tenant_mac(to), dst=tenant_mac(source)) / ARP(
            op="is-at", hwsrc=tenant_mac(to), psrc=tenant(4, to),
            hwdst=tenant_mac(source), pdst=tenant(4, source),
        )
    else:
        group = f"ff02::1:ff00:{to}"
        question = Ether(src=tenant_mac(source), dst=f"33:33:ff:00:00:0{to}") / IPv6(
            src=tenant(6, source), dst=group, hlim=255
        ) / ICMPv6ND_NS(tgt=tenant(6, to)) / ICMPv6NDOptSrcLLAddr(lladdr=tenant_mac(source))
        answer = Ether(src=tenant_mac(to), dst=tenant_mac(source)) / IPv6(
            src=tenant(6, to), dst=tenant(6, source), hlim=255
        ) / ICMPv6ND_NA(tgt=tenant(6, to), R=0, S=1, O=1) / ICMPv6NDOptDstLLAddr(
            lladdr=tenant_mac(to)
        )
    found = laboratory.exchange(wrapped(kind, outer, question))
    check(found, f"no answer: {laboratory.drops()}")
    read = Ether(found)
    ip = read[IP_CLASS[outer]]
    check((read.dst, ip.dst) == (host_mac(1), host(outer, 1)), f"to another: {read.summary()}")
    check(ip.src == ENTRANCE[outer], f"from another: {read.summary()}")
    check(read[UDP].dport == UDP_PORT[kind], f"port {read[UDP].dport}")
    check(bytes(again(found)) == found, f"outer checksums: {differ(found, bytes(again(found)))}")
    said = bytes(read[UDP].payload)
    wanted = bytes(header(kind) / answer)
    check(said == wanted, f"answered {said.hex()}, not {wanted.hex()}")
    return ""


def row_options(laboratory, outer, inner):
    """Geneve's options go on as they came; unknown critical ones do not."""
    numbers = from_to(outer)
    frame = inside(inner, numbers, UDP(sport=1, dport=2) / Raw(b"options"))
    for options in OPTIONS:
        sent = wrapped("geneve", outer, frame, options)
        carried(laboratory, sent, outer, numbers[1], f"options {options}")
        read = Ether(bytes(sent))[GENEVE]
        check(len(read.options) == len(options), "scapy reads other options")
    for options in ([(0x0102, 0x83, bytes(4))], [(0x0111, 0xCA, b"")], [(0x0112, 0xC8, b"flow")]):
        laboratory.dropped(wrapped("geneve", outer, frame, options), "overlay_option")
    short = wrapped("geneve", outer, frame, OPTIONS[1])
    short[GENEVE].optionlen = 3
    laboratory.dropped(short, "overlay_header")
    for field, value, reason in (
        ("version", 1, "overlay_header"), ("proto", 0x0800, "overlay_header"),
        ("oam", 1, "overlay_control"),
    ):
        changed = wrapped("geneve", outer, frame)
        changed[GENEVE].setfieldval(field, value)
        laboratory.dropped(changed, reason)
    return f"{len(OPTIONS)} passed, 7 dropped"


def row_refused(laboratory, kind, outer, inner):
    """Frames that go nowhere: a VLAN tag inside, an unknown network, no VNI, wrong sums."""
    numbers = from_to(outer)
    frame = inside(inner, numbers, UDP(sport=1, dport=2) / Raw(b"refused"))
    good = wrapped(kind, outer, frame)
    for vlan in (5, 0):
        tagged = Ether(src=frame.src, dst=frame.dst) / Dot1Q(vlan=vlan) / frame.payload
        laboratory.dropped(wrapped(kind, outer, tagged), "inner_vlan")
    other = good.copy()
    other[GENEVE if kind == "geneve" else VXLAN].vni = 0xFFFFFF
    laboratory.dropped(other, "unknown_vni")
    if kind == "vxlan":
        other = good.copy()
        other[VXLAN].flags = 0
        laboratory.dropped(other, "overlay_header")
    if inner == 4:
        wrong = inside(4, numbers, UDP(sport=1, dport=2))
        wrong[IP].chksum = 0x1234
        laboratory.dropped(wrapped(kind, outer, wrong), "ip_checksum")
    carried(laboratory, good, outer, numbers[1], "the good frame")
    return ""


def row_kernel(laboratory, kind):
    """The same frames from the program in the kernel: IPv4 in IPv4, without a checksum of UDP."""
    numbers = from_to(4)
    frames = [inside(4, numbers, upper) for what, upper, more in uppers(4)
              if not more and "SYN" not in what]
    sent = [wrapped(kind, 4, frame, tos=tos, sums=False) for frame in frames for tos in (0, 0xBB)]
    end = time.monotonic() + WARM_S
    while True:
        before = kernel_packets(laboratory)
        carried(laboratory, sent[0], 4, numbers[1], "the first")
        if kernel_packets(laboratory) > before:
            break
        check(time.monotonic() < end, f"never in the kernel: {laboratory.counters()}")
        time.sleep(0.2)
    before = kernel_packets(laboratory)
    for number, frame in enumerate(sent):
        carried(laboratory, frame, 4, numbers[1], f"frame {number}")
    count = kernel_packets(laboratory) - before
    check(count == len(sent), f"{count} of {len(sent)} in the kernel")
    return f"{len(sent)} frames in the kernel"


def kernel_packets(laboratory):
    """Packets that the program in the kernel has answered."""
    return int(laboratory.counters()["tiers"]["kernel"])


def all_rows():
    """Name, the kernel tier's use, and the function that plays it, of every row."""
    for kind in NETWORK:
        for outer in FAMILIES:
            for inner in FAMILIES:
                ways = f"{inner}-in-{outer}"
                for what, play in (("carried", row_carried), ("other-family", row_other_family),
                                   ("asked", row_asked), ("refused", row_refused)):
                    arguments = (kind, outer, inner)
                    yield f"overlay {kind} {ways} {what}", "off", play, arguments
                if kind == "geneve":
                    yield f"overlay {kind} {ways} options", "off", row_options, (outer, inner)
        yield f"overlay {kind} 4-in-4 kernel", "on", row_kernel, (kind,)


def selected(words):
    """The rows whose names hold all words."""
    return [row for row in all_rows() if all(word in row[0].split() for word in words)]


def outcomes(daemon, rows):
    """Yields name, failure or `None`, and a note, of every row."""
    for use in ("off", "on"):
        chosen = [row for row in rows if row[1] == use]
        if not chosen:
            continue
        try:
            with Laboratory(daemon, use) as laboratory:
                for name, _, play, arguments in chosen:
                    yield name, *outcome(laboratory, play, arguments)
        except (Failed, OSError, subprocess.SubprocessError) as failure:
            yield "overlay", f"no laboratory: {failure}", ""


def outcome(laboratory, play, arguments):
    """Failure or `None`, and a note, of one row."""
    try:
        return None, play(laboratory, *arguments)
    except (Failed, OSError, KeyError, IndexError) as failure:
        return f"{type(failure).__name__}: {failure}", ""
