#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The plugin in real charons, against scripted lockgateds. As root:

    tests/run.py BUILD [NAME...]

BUILD is the folder with libstrongswan-lockgate.so. Each test makes two network namespaces, and
removes them. The exit code is 0 if none failed, 1 if some did, 2 if nothing could be tested.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from daemon import (ANSWER, FORWARD, INBOUND, OUTBOUND, REFUSED, address, field, message,
                    selector)
from lab import CHARON, Lab, run, wait

SECONDS = 20
TESTS = []
NOTES = []


class Skipped(Exception):
    """The machine lacks something that the test needs."""


def test(function):
    TESTS.append(function)
    return function


def note(text):
    NOTES.append(text)


def keys_once(*gateways):
    """Each key of a gateway crossed the socket exactly once, over all incarnations."""
    for gateway in gateways:
        daemon = gateway.daemon
        assert not daemon.wrong, daemon.wrong
        assert daemon.crossed, "no key was seen at all"
        twice = [key.hex() for key, count in daemon.crossed.items() if count != 1]
        assert not twice, f"keys that crossed the socket again: {twice}"


def two_sas(gateway):
    daemon = gateway.daemon
    return len(daemon.of(INBOUND)) == 1 and len(daemon.of(OUTBOUND)) == 1


def fit(a, b):
    """What each end seals with its newest SA, the other can open."""
    def opens(here, there):
        out, into = here.daemon.of(OUTBOUND), there.daemon.of(INBOUND)
        return bool(out) and out[-1].get("KEY") in [sa.get("KEY") for sa in into]
    return opens(a, b) and opens(b, a)


def greeted_again(daemon, seconds=5):
    """Waits until the next connection after this moment is resumed."""
    before = daemon.kinds().count("RESUMED")
    wait(lambda: daemon.kinds().count("RESUMED") > before and daemon.resumed.is_set(), seconds,
         "the next connection")


def bytes_lines(gateway):
    return [line.split() for line in gateway.swanctl("--list-sas").stdout.splitlines()
            if line.split()[:1] in (["in"], ["out"])]


@test
def an_install_says_what_charon_negotiated(lab):
    a, b = lab.up(child="replay_window = 128\nrekey_bytes = 1000000\nlife_bytes = 2000000\n"
                        "rekey_packets = 5000\nlife_packets = 7000\nrekey_time = 100\n"
                        "life_time = 200\nrand_time = 50", esp="aes256gcm16-esn")
    assert a.daemon.kinds() == ["HELLO", "RESUMED", "GET_SPI", "ADD_SA", "ADD_SA"] + [
        "ADD_POLICY"] * 3, a.daemon.kinds()
    hello = a.daemon.history[0]
    assert hello.get("CHARON") == b"5.9.8" and hello.get("PLUGIN"), hello.fields
    assert hello.get("CHARON_ID") != b.daemon.history[0].get("CHARON_ID"), "one number for two"
    out, into = a.daemon.of(OUTBOUND)[0], b.daemon.of(INBOUND)[0]
    for name in ("KEY", "SPI", "SOURCE", "DESTINATION", "ENCRYPTION", "MODE", "ESN",
                 "SOURCE_SELECTOR", "DESTINATION_SELECTOR"):
        assert out.get(name) == into.get(name), name
    assert len(out.get("KEY")) == 36 and out.get("INTEGRITY_KEY") == b""
    assert out.number_of("ENCRYPTION") == 20 and out.number_of("INTEGRITY") == 0
    assert out.number_of("MODE") == 2 and out.number_of("ESN") == 1
    assert out.number_of("WINDOW") == 128 and out.number_of("ENCAPSULATION") == 0
    assert out.get("SOURCE_SELECTOR") == selector("10.1.0.0", "10.1.0.255")
    assert out.number_of("INITIATOR") == 1 and into.number_of("INITIATOR") == 0
    seconds, octets, packets = struct.unpack(">QQQ", out.get("HARD"))
    assert (seconds, octets, packets) == (200, 2000000, 7000)
    seconds, octets, packets = struct.unpack(">QQQ", into.get("SOFT"))
    assert 0 < seconds <= 100 and 0 < octets <= 1000000 and 0 < packets <= 5000
    directions = [dict(policy)["DIRECTION"][0] for policy in a.daemon.policies]
    assert sorted(directions) == [INBOUND, OUTBOUND, FORWARD]
    assert {dict(policy)["SPI"] for policy in a.daemon.policies} == {
        out.get("SPI"), a.daemon.of(INBOUND)[0].get("SPI")}
    # The child has its names as soon as it is up.
    wait(lambda: list(a.daemon.names.values()) == [(b"c", b"net")], 2, "names")
    # What lockgated chose is what the peer was told.
    assert b.daemon.of(OUTBOUND)[0].get("SPI") == a.daemon.of(INBOUND)[0].get("SPI")
    keys_once(a, b)


@test
def suites_and_modes_arrive_as_negotiated(lab):
    a, b = lab.start()
    for esp, encryption, integrity, key, second in (
            ("chacha20poly1305-esn", 28, 0, 36, 0), ("aes128-sha256-esn", 12, 12, 16, 32),
            ("aes256-sha512-noesn", 12, 14, 32, 64), ("null-sha384-noesn", 11, 13, 0, 48)):
        for gateway in (a, b):
            gateway.load(esp=esp, child="mode = transport", local_ts=f"{gateway.mine}[6/8080]",
                         remote_ts=f"{gateway.peer}[6]")
        # Selectors that do not meet fail; the responder's must mirror them.
        b.load(esp=esp, child="mode = transport", local_ts=f"{b.mine}[6]",
               remote_ts=f"{b.peer}[6/8080]")
        a.initiate()
        wait(lambda: two_sas(a) and two_sas(b), 4, esp)
        sa = a.daemon.of(OUTBOUND)[0]
        assert sa.number_of("ENCRYPTION") == encryption and sa.number_of("INTEGRITY") == integrity
        assert len(sa.get("KEY")) == key and len(sa.get("INTEGRITY_KEY")) == second, esp
        assert sa.number_of("MODE") == 1 and sa.number_of("ESN") == esp.endswith("-esn")
        assert sa.get("SOURCE_SELECTOR") == selector("10.99.0.1", "10.99.0.1", 6, (8080, 8080))
        assert sa.get("KEY") == b.daemon.of(INBOUND)[0].get("KEY")
        a.terminate()
        wait(lambda: not a.daemon.sas and not b.daemon.sas, 3, "the end")
    keys_once(a, b)


@test
def ipv6_inside_and_outside(lab):
    # Only here: charon moves SAs to any address that it has.
    for number, gateway in enumerate(lab.gateways, 1):
        run("ip", "-n", gateway.namespace, "address", "add", f"fd00:99::{number}/64", "dev", "w",
            "nodad")
    a, b = lab.start()
    a.load(local="fd00:99::1", remote="fd00:99::2", local_ts="fd00:1::/64", remote_ts="fd00:2::/48")
    b.load(local="fd00:99::2", remote="fd00:99::1", local_ts="fd00:2::/48", remote_ts="fd00:1::/64")
    a.initiate()
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")
    out = a.daemon.of(OUTBOUND)[0]
    for name in ("SOURCE", "DESTINATION", "SOURCE_SELECTOR", "DESTINATION_SELECTOR", "KEY"):
        assert out.get(name) == b.daemon.of(INBOUND)[0].get(name), name
    assert out.get("SOURCE")[:16] == socket.inet_pton(socket.AF_INET6, "fd00:99::1")
    assert out.get("DESTINATION_SELECTOR") == (
        b"\0\0\0\0\xff\xff" + socket.inet_pton(socket.AF_INET6, "fd00:2::")
        + socket.inet_pton(socket.AF_INET6, "fd00:2:0:ffff:ffff:ffff:ffff:ffff"))
    a.daemon.expire(a.daemon.of(INBOUND)[0], hard=True)
    wait(lambda: two_sas(a) and a.daemon.of(OUTBOUND)[0] is not out, 3, "new SAs")
    reqid = out.number_of("REQID")
    a.load(local="fd00:99::1", remote="fd00:99::2", local_ts="fd00:1::/64", remote_ts="fd00:2::/48",
           child="start_action = trap")
    a.terminate()
    wait(lambda: not a.daemon.sas, 3, "no SAs")
    a.daemon.acquire(reqid, single_six("fd00:1::5"), single_six("fd00:2::5"))
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs that the acquire asked for")
    keys_once(a, b)


def single_six(text):
    """A selector of one IPv6 address."""
    return b"\0\0\0\0\xff\xff" + socket.inet_pton(socket.AF_INET6, text) * 2


@test
def lockgated_after_charon_no_fallback(lab):
    a, b = lab.a, lab.b
    b.daemon.start()
    for gateway in (a, b):
        gateway.start()
        gateway.load()
    assert a.initiate(check=False).returncode != 0
    assert a.logged("lockgated is not there: .*no such socket"), a.log()[-2000:]
    assert a.logged("unable to allocate SPI")
    # Not one socket to the kernel's IPsec: nothing could have been asked of it.
    assert a.xfrm_sockets() == [] and b.xfrm_sockets() == []
    a.daemon.start()
    a.initiate()
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")
    assert a.xfrm_sockets() == []


@test
def a_trap_waits_for_lockgated(lab):
    a, b = lab.a, lab.b
    b.daemon.start()
    for gateway in (a, b):
        gateway.start()
    b.load()
    a.load(child="start_action = trap")
    assert a.logged("a policy waits for lockgated")
    a.daemon.start()
    wait(lambda: len(a.daemon.policies) == 3, 3, "the trap")
    trap = dict(next(iter(a.daemon.policies)))
    assert trap["SPI"] == bytes(4) and a.daemon.history[1].number_of("REPEAT") == 0
    a.daemon.acquire(int.from_bytes(trap["REQID"], "big"), selector("10.1.0.5", "10.1.0.5"),
                     selector("10.2.0.5", "10.2.0.5"))
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")


@test
def an_acquire_negotiates(lab):
    a, b = lab.start()
    b.load()
    a.load(child="start_action = trap")
    wait(lambda: len(a.daemon.policies) == 3, 3, "the trap")
    reqid = int.from_bytes(dict(next(iter(a.daemon.policies)))["REQID"], "big")
    # charon puts a trap again before it takes the one that it replaces away.
    before = len(a.daemon.history)
    a.swanctl("--install", "--child", "net")
    added = [message.kind for message in a.daemon.history[before:]]
    assert added.count("ADD_POLICY") == 3 and len(a.daemon.policies) == 3, added
    began = time.monotonic()
    a.daemon.acquire(reqid, selector("10.1.0.5", "10.1.0.5", 6, (1, 1)),
                     selector("10.2.0.5", "10.2.0.5", 6, (80, 80)))
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")
    note(f"acquire to both SAs: {1000 * (time.monotonic() - began):.0f} ms")
    assert len(a.daemon.policies) == 6
    # An acquire for nothing that charon knows is only logged.
    a.daemon.acquire(4711, selector("10.9.0.5", "10.9.0.5"), selector("10.2.0.5", "10.2.0.5"))
    wait(lambda: a.logged("trap not found"), 3, "the log line")
    assert a.daemon.connection and not a.daemon.wrong


@test
def a_soft_expire_rekeys_make_before_break(lab):
    a, b = lab.up()
    old = a.daemon.of(INBOUND)[0]
    a.daemon.expire(old, hard=False)
    wait(lambda: len(a.daemon.of(INBOUND)) == 2, 3, "a second inbound SA")
    wait(lambda: len(a.daemon.of(OUTBOUND)) == 1 and len(b.daemon.of(OUTBOUND)) == 1, 3,
         "one outbound SA")
    assert old.handle in a.daemon.sas
    # charon keeps the old inbound SA five seconds for packets on their way.
    wait(lambda: old.handle not in a.daemon.sas, 8, "the end of the old inbound SA")
    wait(lambda: two_sas(a) and two_sas(b), 3, "two SAs")
    keys_once(a, b)


@test
def a_successor_has_its_names_too(lab):
    a, b = lab.up()
    for gateway in (a, b):
        wait(lambda: len(gateway.daemon.names) == 1, 2, "names")
    a.swanctl("--rekey", "--child", "net")
    for gateway in (a, b):
        wait(lambda: len(gateway.daemon.names) == 2, 5, "names of the new child")
        assert set(gateway.daemon.names.values()) == {(b"c", b"net")}, gateway.daemon.names
        assert not gateway.daemon.wrong, gateway.daemon.wrong


@test
def names_that_were_lost_come_with_the_next_connection(lab):
    a, b = lab.start()
    for gateway in (a, b):
        gateway.load()
    lost = []

    def lose(request):
        if request.kind != "NAME_SA" or lost:
            return None
        lost.append(request)
        a.daemon.hang_up()
        return "silence"

    a.daemon.before = lose
    a.initiate()
    wait(lambda: lost, 5, "names")
    wait(lambda: list(a.daemon.names.values()) == [(b"c", b"net")], 5, "names again")
    assert two_sas(a) and not a.daemon.wrong, a.daemon.wrong


@test
def a_hard_expire_makes_a_new_one(lab):
    a, b = lab.up()
    old = a.daemon.of(OUTBOUND)[0]
    began = time.monotonic()
    # By the outbound SPI, as byte limits of what leaves are met there.
    a.daemon.expire(old, hard=True)
    wait(lambda: old.handle not in a.daemon.sas and two_sas(a) and two_sas(b), 4, "new SAs")
    note(f"hard expire to new SAs: {1000 * (time.monotonic() - began):.0f} ms")
    keys_once(a, b)


@test
def counters_reach_charon(lab):
    a, b = lab.up()
    a.daemon.use = {INBOUND: (2200, 941600, 0), OUTBOUND: (7, 700, 3)}
    lines = bytes_lines(a)
    assert lines[0][2:7] == ["941600", "bytes,", "2200", "packets,", "0s"], lines
    assert lines[1][2:7] == ["700", "bytes,", "7", "packets,", "3s"], lines
    lines = bytes_lines(b)
    assert lines[0][2:6] == ["0", "bytes,", "0", "packets"], lines


@test
def dead_peer_detection_looks_at_our_counters(lab):
    a, b = lab.up(connection="dpd_delay = 1s")
    count = [0]

    def count_up(request):
        if request.kind == "QUERY_SA":
            count[0] += 100
            a.daemon.use = {INBOUND: (count[0], count[0] * 100, 0)}

    a.daemon.before = count_up
    b.daemon.use = {INBOUND: (1, 1, 0)}
    b.stop(signal.SIGKILL)
    time.sleep(2.5)
    assert two_sas(a), "charon gave up a peer whose packets arrive"
    a.daemon.before = None
    wait(lambda: not a.daemon.sas and not a.daemon.policies, 8, "the dead peer's end")


@test
def termination_takes_everything_back(lab):
    a, b = lab.up()
    a.terminate()
    for gateway in (a, b):
        wait(lambda g=gateway: not g.daemon.sas and not g.daemon.policies, 3, "an empty lockgated")
        assert not gateway.daemon.reserved and not gateway.daemon.wrong
    a.daemon.hang_up()
    a.daemon.history.clear()
    wait(a.daemon.resumed.is_set, 3, "the next connection")
    assert a.daemon.kinds() == ["HELLO", "RESUMED"], a.daemon.kinds()


@test
def charon_that_ends_takes_its_sas_along(lab):
    a, b = lab.up()
    assert a.stop() == 0
    wait(lambda: not a.daemon.sas and not b.daemon.sas, 3, "the end of the SAs")
    wait(lambda: a.daemon.connection is None, 3, "the end of the connection")


@test
def the_same_incarnation_gets_handles_and_policies(lab):
    a, b = lab.up(child="start_action = trap")
    handles = sorted(a.daemon.sas)
    policies = sorted(a.daemon.policies)
    charon = a.daemon.charon
    a.daemon.history.clear()
    a.daemon.hang_up()
    wait(a.daemon.resumed.is_set, 3, "the resume")
    assert a.daemon.kinds() == ["HELLO", "RESUME_SAS"] + ["ADD_POLICY"] * 6 + ["RESUMED"]
    assert a.daemon.history[0].get("CHARON_ID") == charon
    assert sorted(a.daemon.history[1].handles()) == handles == sorted(a.daemon.sas)
    assert sorted(a.daemon.policies) == policies
    assert all(request.number_of("REPEAT") == 1 for request in a.daemon.history
               if request.kind == "ADD_POLICY")
    assert "INSTALLED" in a.swanctl("--list-sas").stdout
    a.terminate()
    wait(lambda: not a.daemon.sas and len(a.daemon.policies) == 3, 3, "nothing but the trap")
    keys_once(a, b)


@test
def what_lockgated_lacks_is_made_anew(lab):
    a, b = lab.up()
    for direction in (INBOUND, OUTBOUND):
        old = set(a.daemon.sas)
        # It loses the SA of one direction; the other one is deleted.
        del a.daemon.sas[a.daemon.of(direction)[0].handle]
        a.daemon.hang_up()
        wait(lambda: two_sas(a) and two_sas(b) and not old & set(a.daemon.sas), 5, "new SAs")
        assert a.log().count("lockgated lacks 1 of its 2 SAs: charon makes new ones") == direction
        assert fit(a, b)
    keys_once(a, b)


@test
def what_a_resume_refuses_is_made_anew(lab):
    a, b = lab.up()
    old = set(a.daemon.sas)
    refused = []

    def refuse(request):
        if request.kind == "ADD_POLICY" and request.number_of("REPEAT") and not refused:
            refused.append(request)
            return message(ANSWER, request.number, a.daemon.incarnation,
                           field("STATUS", struct.pack(">H", REFUSED)))
        return None

    a.daemon.before = refuse
    a.daemon.hang_up()
    wait(lambda: refused and two_sas(a) and two_sas(b) and not old & set(a.daemon.sas), 5,
         "new SAs")
    wait(lambda: len(a.daemon.policies) == 3, 3, "policies of the new child alone")
    keys_once(a, b)


@test
def a_new_incarnation_gets_policies_and_new_sas(lab):
    a, b = lab.up(child="start_action = trap")
    old = set(a.daemon.sas)
    policies = sorted(a.daemon.policies)
    a.daemon.stop()
    time.sleep(0.2)
    a.daemon.history.clear()
    keys_before = {sa.get("KEY") for sa in b.daemon.sas.values()}
    began = time.monotonic()
    a.daemon.start()
    wait(a.daemon.resumed.is_set, 3, "the connection")
    connected = time.monotonic()
    first = a.daemon.kinds()[:a.daemon.kinds().index("RESUMED")]
    assert first == ["HELLO", "RESUME_SAS"] + ["ADD_POLICY"] * 6, first
    assert set(a.daemon.history[1].handles()) == old
    wait(lambda: two_sas(a), 5, "new SAs")
    note(f"new incarnation: connected after {1000 * (connected - began):.0f} ms, "
         f"new SAs {1000 * (time.monotonic() - connected):.0f} ms later")
    assert a.logged("lockgated started anew without 2 of its 2 SAs: charon makes new ones")
    repeated = [request for request in a.daemon.history[:len(first)]
                if request.kind == "ADD_POLICY"]
    assert sorted(request.policy() for request in repeated) == policies
    assert not any(request.number_of("REPEAT") for request in repeated)
    assert not {sa.get("KEY") for sa in a.daemon.sas.values()} & keys_before
    wait(lambda: two_sas(b), 8, "the peer's new SAs")
    # charon deletes the old SAs; this incarnation hears nothing of them.
    wait(lambda: "REKEYED" not in a.swanctl("--list-sas").stdout
         and "DELET" not in a.swanctl("--list-sas").stdout, 8, "the old child's end")
    assert not [request for request in a.daemon.history if request.number_of("HANDLE") in old]
    keys_once(a, b)


def is_made_anew_once(lab, responder, children):
    """One lockgated starts anew: its charon ends each child once, and makes one for each."""
    a, b = lab.start()
    for gateway in (a, b):
        gateway.load(more=children - 1)
    for number in range(children):
        a.initiate(child=f"net{number or ''}", seconds=3)
    for gateway in (a, b):
        wait(lambda d=gateway.daemon: len(d.of(INBOUND)) == len(d.of(OUTBOUND)) == children, 3,
             f"{children} children")
    victim, other = (b, a) if responder else (a, b)
    old = {sa.get("SPI") for gateway in (a, b) for sa in gateway.daemon.sas.values()}
    victim.daemon.stop()
    victim.daemon.history.clear()
    other.daemon.history.clear()
    victim.daemon.start()
    began = time.monotonic()
    wait(victim.daemon.resumed.is_set, 3, "the connection")
    assert victim.logged(f"started anew without {2 * children} of its {2 * children} SAs")

    def is_new(daemon):
        return (len(daemon.of(INBOUND)) == len(daemon.of(OUTBOUND)) == children
                and not old & {sa.get("SPI") for sa in daemon.sas.values()})

    wait(lambda: is_new(victim.daemon) and is_new(other.daemon), 12, "the new children")
    took = time.monotonic() - began
    # Nothing more comes: tasks that are left over find their child gone.
    time.sleep(1.5)
    assert is_new(victim.daemon) and is_new(other.daemon)
    for gateway in (a, b):
        added = [request for request in gateway.daemon.history if request.kind == "ADD_SA"]
        assert len(added) == 2 * children, len(added)
        assert len(gateway.daemon.policies) == 3 * children
        assert gateway.swanctl("--list-sas").stdout.count("INSTALLED") == children
    log = victim.log()
    counts = [log.count(text) for text in (
        "creating delete job for CHILD_SA", "closing expired CHILD_SA",
        "scheduling CHILD_SA recreate", "not found for delete")]
    note(f"{counts[0]} expiries, {counts[1]} children closed, {counts[2]} made, {counts[3]} not "
         f"found, in {took:.2f} s")
    assert counts[:3] == [2 * children, children, children], counts
    keys_once(a, b)


@test
def a_child_whose_install_goes_on_is_made_anew(lab):
    # charon finds a child by its SPI a moment after the last policy of its install.
    a, b = lab.start()
    for gateway in (a, b):
        gateway.load()
    for number in range(1, 4):
        renewed = []

        def renew(request, last=number, seen=renewed):
            if request.kind == "ADD_POLICY":
                seen.append(request)
                if len(seen) == last:
                    a.daemon.renew()
                    return "silence"
            return None

        wait(a.daemon.resumed.is_set, 3, "the connection")
        a.daemon.before = renew
        a.swanctl("--initiate", "--child", "net", "--timeout", "2", check=False)
        wait(lambda: len(renewed) >= number and two_sas(a) and fit(a, b), 8,
             f"a new child after policy {number}")
        a.daemon.before = None
        a.terminate()
        wait(lambda: not a.daemon.sas and not b.daemon.sas, 3, "no child")
    keys_once(a, b)


def anew_test(responder, children):
    def anew(lab):
        is_made_anew_once(lab, responder, children)
    anew.__name__ = (f"{'each_of_50_children' if children > 1 else 'a_child'}_of_the_"
                     f"{'responder' if responder else 'initiator'}_is_made_anew_once")
    return anew


for the_responder in (False, True):
    for the_number in (1, 50):
        TESTS.append(anew_test(the_responder, the_number))


@test
def both_lockgateds_anew(lab):
    a, b = lab.up()
    for gateway in (a, b):
        gateway.daemon.stop()
    for gateway in (a, b):
        gateway.daemon.start()
    began = time.monotonic()
    old = set(a.daemon.sas)
    wait(lambda: fit(a, b), 16, "SAs that fit")
    note(f"both new: SAs that fit after {time.monotonic() - began:.1f} s")
    assert not old & set(a.daemon.sas)
    keys_once(a, b)


def die_at(lab, number, answered, rekeys, responder):
    """One lockgated dies at a message of an install or a rekeying, before or after its answer.

    The next incarnation comes up at once. In the end both ends have SAs that fit, and no key came
    a second time.
    """
    if rekeys:
        a, b = lab.up()
    else:
        a, b = lab.start()
        for gateway in (a, b):
            gateway.load()
    victim = b if responder else a
    wait(victim.daemon.resumed.is_set, 3, "the connection")
    before = len(victim.daemon.kinds())
    died = []

    def die(request):
        # Names come beside the others, at any time.
        if request.kind == "NAME_SA" or died or len(victim.daemon.kinds()) - before != number:
            return None
        died.append(request.kind)
        if answered:
            return "stop after"
        victim.daemon.stop()
        return "silence"

    victim.daemon.before = die
    if rekeys:
        a.daemon.expire(a.daemon.of(INBOUND)[0], hard=False)
        # The last ones come when the old inbound SA is removed, five seconds later.
        wait(lambda: died, 7, "its death")
    else:
        a.swanctl("--initiate", "--child", "net", "--timeout", "2", check=False)
    assert died, "there were fewer messages"
    wait(lambda: victim.daemon.listener is None, 2, "its death")
    victim.daemon.start()
    wait(victim.daemon.resumed.is_set, 4, "the next connection")
    began = time.monotonic()
    asked = ""
    # If charon gave the child up, the operator's next attempt must do.
    while not fit(a, b):
        if time.monotonic() - began > 1.5 and "net:" not in a.swanctl("--list-sas").stdout:
            asked = ", asked to"
            a.initiate(check=False, seconds=3)
        assert time.monotonic() - began < 12, (a.daemon.sas, b.daemon.sas, a.log()[-3000:])
        time.sleep(0.02)
    text = f"{died[0]}: SAs that fit after {time.monotonic() - began:.1f} s{asked}"
    if rekeys:
        # Nothing of the old ones or of half a rekeying stays.
        wait(lambda: two_sas(a) and two_sas(b) and fit(a, b), 13, "one child at each end")
        wait(lambda: len(a.daemon.policies) == 3 and len(b.daemon.policies) == 3, 3, "its policies")
        text += f", nothing else after {time.monotonic() - began:.1f} s"
    keys_once(a, b)
    return text


def death_test(number, answered, rekeys, responder):
    def death(lab):
        note(die_at(lab, number, answered, rekeys, responder))
    death.__name__ = (f"lockgated_of_the_{'responder' if responder else 'initiator'}_dies_"
                      f"{'after' if answered else 'at'}_message_{number}_of_"
                      f"{'a_rekeying' if rekeys else 'an_install'}")
    return death


for the_responder in (False, True):
    for the_number in range(1, 7):
        TESTS.append(death_test(the_number, False, False, the_responder))
        TESTS.append(death_test(the_number, True, False, the_responder))
    for the_number in range(1, 9):
        TESTS.append(death_test(the_number, the_number % 2 == 0, True, the_responder))


@test
def slow_answers_end_the_call_in_time(lab):
    a, b = lab.start()
    for gateway in (a, b):
        gateway.load()
    a.daemon.before = lambda request: 3.0 if request.kind == "GET_SPI" else None
    began = time.monotonic()
    assert a.initiate(check=False).returncode != 0
    took = time.monotonic() - began
    assert 1.9 < took < 2.6, took
    assert a.logged("lockgated does not answer")
    # In the second after it, calls fail at once.
    began = time.monotonic()
    a.initiate(check=False)
    assert time.monotonic() - began < 0.5
    a.daemon.before = None
    greeted_again(a.daemon)
    a.initiate()
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")
    keys_once(a, b)


def wrong_answers(lab, names):
    """Each fails the call within the time limit, and closes the connection."""
    a, b = lab.start()
    for gateway in (a, b):
        gateway.load()

    def answer(request, fields, **header):
        return message(header.get("kind", ANSWER), request.number + header.get("skip", 0),
                       header.get("incarnation", a.daemon.incarnation), fields)

    done = field("STATUS", bytes(2)) + field("HANDLE", b"\xff" * 8)
    spi = field("SPI", b"\xc0\0\0\1")
    bare = field("STATUS", bytes(2)) + spi
    wrong = {
        "garbage": lambda request: bytes(range(1, 200)),
        "short": lambda request: answer(request, done + spi)[:20],
        "cut": lambda request: answer(request, done + spi)[:-2],
        "oversized": lambda request: bytes(9000),
        "of another version": lambda request: answer(request, done + spi).replace(
            b"LGKM\0\2", b"LGKM\0\1", 1),
        "without an SPI": lambda request: answer(request, done),
        "with two SPIs": lambda request: answer(request, done + spi + spi),
        "without a handle": lambda request: answer(request, bare),
        "with handle 0": lambda request: answer(request, bare + field("HANDLE", bytes(8))),
        "with a list of handles": lambda request: answer(
            request, done + spi + field("HANDLES", bytes(7) + b"\1")),
        "with an unknown field": lambda request: answer(request, done + spi + b"\0\x63\0\0"),
        "of another number": lambda request: answer(request, done + spi, skip=1),
        "of another kind": lambda request: answer(request, done + spi, kind=3),
        "of another incarnation": lambda request: answer(request, done + spi, incarnation=5),
    }
    wait(a.daemon.resumed.is_set, 4, "the connection")
    for name in names:
        make = wrong[name]
        a.daemon.before = lambda request, m=make: m(request) if request.kind == "GET_SPI" else None
        began = time.monotonic()
        assert a.initiate(check=False, seconds=3).returncode != 0, name
        assert time.monotonic() - began < 2.5, name
        a.daemon.before = None
        wait(lambda: a.daemon.kinds()[-2:] == ["HELLO", "RESUMED"]
             and a.daemon.resumed.is_set(), 4, f"a new connection after one {name}")
    assert a.daemon.kinds().count("HELLO") == len(names) + 1
    a.initiate()
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")
    keys_once(a, b)


@test
def malformed_answers_fail_the_call_and_nothing_else(lab):
    wrong_answers(lab, ("garbage", "short", "cut", "oversized", "of another version"))


@test
def unfitting_answers_fail_the_call_and_nothing_else(lab):
    wrong_answers(lab, ("without an SPI", "with two SPIs", "with an unknown field",
                        "of another number", "of another kind", "of another incarnation"))


@test
def answers_without_a_handle_fail_the_call_and_nothing_else(lab):
    wrong_answers(lab, ("without a handle", "with handle 0", "with a list of handles"))


@test
def a_lockgated_of_version_1_is_named(lab):
    a = lab.a
    a.daemon.before = lambda request: message(
        ANSWER, request.number, 0, field("STATUS", b"\0\5")).replace(
            b"LGKM\0\2", b"LGKM\0\1", 1)
    a.daemon.start()
    a.start()
    wait(lambda: a.daemon.kinds().count("HELLO") >= 3, 5, "further attempts")
    assert a.log().count("lockgated speaks version 1 of the protocol, this plugin version 2: "
                         "install lockgate-charon of the same release") == 1
    assert set(a.daemon.kinds()) == {"HELLO"}
    a.daemon.before = None
    wait(a.daemon.resumed.is_set, 4, "a connection to one of version 2")


@test
def wrong_events_are_dropped(lab):
    a, b = lab.up()
    for kind, fields in ((0x102, b""), (0x101, field("REQID", bytes(4))), (0x1FF, b""),
                         (0x102, field("HANDLE", bytes(8)) + field("HARDNESS", b"\1")),
                         (0x103, field("HANDLE", bytes(4)) + field("NEW_SOURCE", bytes(6))),
                         (0x102, field("HANDLE", bytes(7) + b"\1")
                          + field("HARDNESS", b"\7"))):
        wait(a.daemon.resumed.is_set, 4, "the connection")
        a.daemon.tell(kind, fields)
        wait(lambda: not a.daemon.resumed.is_set(), 3, "the end of the connection")
    wait(a.daemon.resumed.is_set, 4, "the connection")
    # Of another incarnation: not even looked at. Of an unknown handle: ignored.
    a.daemon.connection.send(message(0x102, 0, 77, b""))
    a.daemon.tell(0x102, field("HANDLE", b"\xff" * 8) + field("HARDNESS", b"\1"))
    a.daemon.tell(0x103, field("HANDLE", b"\xff" * 8) + field("NEW_SOURCE", bytes(6)))
    time.sleep(0.2)
    assert a.daemon.resumed.is_set() and two_sas(a)


@test
def a_socket_that_takes_nothing_does_not_hold_charon_up(lab):
    a, b = lab.start()
    for gateway in (a, b):
        gateway.load()
    wait(a.daemon.resumed.is_set, 3, "the connection")
    a.daemon.before = lambda request: "silence"
    began = time.monotonic()
    assert a.initiate(check=False).returncode != 0
    assert time.monotonic() - began < 5
    # Many calls at once, all on the one link: each fails, none waits for all the others.
    began = time.monotonic()
    calls = [subprocess.Popen(["swanctl", "--initiate", "--child", "net", "--timeout", "6", "--uri",
                               f"unix://{a.vici}"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) for _ in range(8)]
    for call in calls:
        assert call.wait(10) != 0
    note(f"8 calls on a dumb socket failed within {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 6
    a.daemon.before = None
    greeted_again(a.daemon)
    a.initiate()
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")


@test
def a_suite_that_lockgated_lacks(lab):
    a, b = lab.start()
    for gateway in (a, b):
        gateway.load(esp="chacha20poly1305-esn,aes128gcm16-esn")
    b.daemon.no_suites = {28}
    a.initiate(check=False, seconds=3)
    time.sleep(0.5)
    note("responder lacks the suite: the initiator " + (
        "got another" if two_sas(a) else "is told NO_PROPOSAL_CHOSEN, and no other suite is tried"
        if a.logged("NO_PROPOSAL_CHOSEN") else "hears nothing"))
    assert b.logged("does not have these algorithms: not built in")
    wait(lambda: not b.daemon.sas and not b.daemon.policies, 3, "an empty lockgated")
    keys_once(b)


@test
def what_lockgate_lacks_is_refused_by_name(lab):
    a, b = lab.start()
    for child, esp, text in (("mark_out = 42", "aes128gcm16-esn", "no marks"),
                             ("if_id_in = 7\nif_id_out = 7", "aes128gcm16-esn",
                              "no interface ids"),
                             ("copy_df = no", "aes128gcm16-esn", "no copy_df"),
                             ("copy_ecn = no", "aes128gcm16-esn", "no copy_ecn"),
                             ("copy_dscp = no", "aes128gcm16-esn", "no copy_dscp"),
                             ("hw_offload = yes", "aes128gcm16-esn", "no hw_offload"),
                             ("ah_proposals = sha256-esn", None, "no AH"),
                             ("ipcomp = yes", "aes128gcm16-esn", "no IPComp")):
        for gateway in (a, b):
            if esp:
                gateway.load(child=child, esp=esp)
            else:
                gateway.load(child=child, esp="\n# ")
        a.initiate(check=False, seconds=2)
        wait(lambda: a.logged("refused: it has " + text)
             or b.logged("refused: it has " + text), 2, text)
        a.swanctl("--terminate", "--ike", "c", "--timeout", "2", "--force", check=False)
        wait(lambda: not a.daemon.sas and not a.daemon.policies, 3, "an empty lockgated")
    assert a.xfrm_sockets() == []


@test
def a_moved_address_moves_the_sas(lab):
    a, b = lab.start()
    a.load(local="%any", local_ts="dynamic")
    b.load(remote="%any", remote_ts="dynamic")
    a.initiate()
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")
    sa = a.daemon.of(OUTBOUND)[0]
    assert sa.get("SOURCE_SELECTOR") == selector("10.99.0.1", "10.99.0.1")
    run("ip", "-n", a.namespace, "address", "add", "10.99.0.11/24", "dev", "w")
    run("ip", "-n", a.namespace, "address", "del", "10.99.0.1/24", "dev", "w")
    # Without secondary addresses kept, the second one goes with the first.
    run("ip", "-n", a.namespace, "address", "add", "10.99.0.11/24", "dev", "w", check=False)
    for gateway in (a, b):
        wait(lambda g=gateway: g.daemon.kinds().count("UPDATE_SA") == 2, 10, "both updates")
    updates = [request for request in a.daemon.history if request.kind == "UPDATE_SA"]
    out = next(u for u in updates if u.get("NEW_SOURCE")[:4] == bytes([10, 99, 0, 11]))
    assert out.get("SOURCE_SELECTOR") == selector("10.99.0.11", "10.99.0.11"), out.fields
    note(f"moved SA: reqid {sa.number_of('REQID')} became {out.number_of('REQID')}")
    # lockgated has the move: a resume does not deliver it again.
    wait(lambda: a.daemon.kinds()[-1] in ("DELETE_POLICY", "QUERY_SA"), 3, "the policies")
    time.sleep(0.3)
    a.daemon.history.clear()
    a.daemon.hang_up()
    wait(a.daemon.resumed.is_set, 3, "the resume")
    assert a.daemon.kinds() == ["HELLO", "RESUME_SAS"] + ["ADD_POLICY"] * 3 + ["RESUMED"]
    a.terminate()
    wait(lambda: not a.daemon.sas and not a.daemon.policies, 3, "an empty lockgated")
    keys_once(a, b)


@test
def a_move_without_lockgated_comes_with_the_next_connection(lab):
    a, b = lab.start()
    a.load(local="%any", local_ts="dynamic")
    b.load(remote="%any", remote_ts="dynamic")
    a.initiate()
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")
    handles = set(a.daemon.sas)
    incarnation = a.daemon.incarnation
    a.daemon.stop()
    a.daemon.history.clear()
    for what in ("add 10.99.0.11/24", "del 10.99.0.1/24", "add 10.99.0.11/24"):
        run("ip", "-n", a.namespace, "address", *what.split(), "dev", "w", check=False)
    wait(lambda: b.daemon.kinds().count("UPDATE_SA") == 2, 10, "the peer's updates")
    wait(lambda: "10.99.0.11" in a.swanctl("--list-sas").stdout, 3, "the move")
    time.sleep(0.3)
    a.daemon.start(incarnation)
    wait(a.daemon.resumed.is_set, 3, "the resume")
    kinds = a.daemon.kinds()
    assert kinds[:4] == ["HELLO", "RESUME_SAS", "UPDATE_SA", "UPDATE_SA"], kinds
    updates = a.daemon.history[2:4]
    assert {update.number_of("HANDLE") for update in updates} == handles
    moved = address("10.99.0.11", 4500)[:4]
    assert {update.get(name)[:4] for update, name in zip(updates, (
        "NEW_DESTINATION", "NEW_SOURCE"))} == {moved}
    out = next(update for update in updates if update.get("NEW_SOURCE")[:4] == moved)
    assert out.get("SOURCE_SELECTOR") == selector("10.99.0.11", "10.99.0.11"), out.fields
    assert two_sas(a) and fit(a, b) and len(a.daemon.policies) == 3
    a.terminate()
    wait(lambda: not a.daemon.sas and not a.daemon.policies, 3, "an empty lockgated")
    keys_once(a, b)


@test
def a_changed_mapping_reaches_charon(lab):
    a, b = lab.up(connection="encap = yes")
    sa = b.daemon.of(INBOUND)[0]
    assert sa.number_of("ENCAPSULATION") == 1
    b.daemon.mapping(sa, address("10.99.0.1", 40000))
    wait(lambda: b.logged("NAT mappings of CHILD_SA .* changed"), 3, "the log line")
    wait(lambda: "UPDATE_SA" in b.daemon.kinds(), 3, "the update")
    update = next(request for request in b.daemon.history if request.kind == "UPDATE_SA")
    assert update.get("NEW_SOURCE") == address("10.99.0.1", 40000)


@test
def a_second_charon_is_turned_away(lab):
    a, b = lab.a, lab.b
    b.socket = a.socket
    a.daemon.start()
    a.start()
    wait(a.daemon.resumed.is_set, 3, "the first")
    b.start()
    wait(lambda: b.logged("does not serve this charon: status 7"), 3, "the log line")
    b.load()
    assert b.initiate(check=False, seconds=2).returncode != 0
    assert b.xfrm_sockets() == []
    # Once the first is gone it is served.
    a.stop()
    wait(lambda: b.logged("connected to lockgated"), 4, "the connection")


@test
def a_charon_of_another_version_is_refused(lab):
    a = lab.a
    a.plugin = OTHER
    a.daemon.start()
    a.start()
    a.load()
    assert a.logged("built for strongSwan 5.9.9, which this charon is not: IT REFUSES ALL IPSEC")
    assert a.initiate(check=False, seconds=2).returncode != 0
    assert a.logged("refuses all IPsec")
    time.sleep(1.2)
    assert a.daemon.history == [] and a.xfrm_sockets() == []
    assert a.stop() == 0


@test
def many_children_one_after_the_other(lab):
    a, b = lab.start()
    for gateway in (a, b):
        gateway.load(more=50)
    a.initiate()
    began = time.monotonic()
    for number in range(1, 51):
        a.initiate(child=f"net{number}", seconds=3)
    note(f"50 more children in {time.monotonic() - began:.2f} s, a swanctl process for each")
    wait(lambda: len(a.daemon.of(OUTBOUND)) == 51 and fit(a, b), 3, "51 children")
    # Its lockgated starts anew: each of the children gets new SAs.
    old = set(a.daemon.sas)
    a.daemon.stop()
    a.daemon.start()
    began = time.monotonic()
    wait(lambda: len(a.daemon.of(OUTBOUND)) == 51, 10, "51 new children")
    note(f"all renewed {time.monotonic() - began:.2f} s after a new incarnation")
    assert not old & set(a.daemon.sas)
    a.terminate()
    wait(lambda: not a.daemon.sas and not a.daemon.policies, 5, "an empty lockgated")
    keys_once(a, b)


@test
def hundreds_of_children_at_once(lab):
    a, b = lab.start()
    b.load(more=255)
    began = time.monotonic()
    a.load(more=255, more_child="start_action = start")
    wait(lambda: len(a.daemon.of(OUTBOUND)) == 255 and len(b.daemon.of(OUTBOUND)) == 255, 12,
         "255 children")
    note(f"255 children in {time.monotonic() - began:.2f} s, with their configuration")
    keys_once(a, b)


@test
def charon_of_systemd_serves_too(lab):
    a, b = lab.a, lab.b
    a.program = "/usr/sbin/charon-systemd"
    if not os.path.exists(a.program):
        raise Skipped("charon-systemd is not installed")
    lab.start()
    for gateway in (a, b):
        gateway.load()
    a.initiate()
    wait(lambda: two_sas(a) and two_sas(b), 3, "the SAs")
    assert " lockgate " in a.swanctl("--stats").stdout
    assert a.xfrm_sockets() == []
    keys_once(a, b)


OTHER = None


def main():
    global OTHER
    missing = [tool for tool in (CHARON, "swanctl", "ip", "setpriv") if not shutil.which(tool)]
    if os.geteuid() != 0 or missing:
        print("run.py needs root" + "".join(f", {tool}" for tool in missing) + ": ALL SKIPPED")
        return 2
    build, names = os.path.abspath(sys.argv[1]), sys.argv[2:]
    work = tempfile.mkdtemp(prefix="lockgate-charons-")
    # Only the plugin: whatever else lies there must not hide charon's own.
    plugins = os.path.join(work, "this")
    OTHER = os.path.join(work, "other")
    for folder, name in ((plugins, ""), (OTHER, "other/")):
        os.mkdir(folder)
        shutil.copy(os.path.join(build, name, "libstrongswan-lockgate.so"), folder)

    def interrupt(*_):
        # Once is enough: nothing interrupts the clearing up.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    def too_long(*_):
        raise AssertionError(f"not done within {SECONDS} s")

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGALRM, too_long)
    passed, lacking, failed = 0, 0, []
    chosen = [t for t in TESTS if not names or any(name in t.__name__ for name in names)]
    try:
        for each in chosen:
            NOTES.clear()
            began = time.monotonic()
            problem, skipped, log = None, None, ""
            signal.alarm(SECONDS)
            try:
                with Lab(plugins) as lab:
                    try:
                        each(lab)
                    except Skipped as reason:
                        skipped = str(reason)
                    except Exception:
                        problem = traceback.format_exc()
                        log = "".join(f"--- {g.name}: {g.daemon.kinds()[-30:]}\n{g.log()[-4000:]}"
                                      for g in lab.gateways if os.path.exists(g.log_path))
                    finally:
                        signal.alarm(0)
            except Exception:
                problem = (problem or "") + traceback.format_exc()
            took = time.monotonic() - began
            if skipped:
                NOTES.append(skipped)
            word = "FAILED" if problem else "SKIPPED" if skipped else "passed"
            print(f"{word}  {each.__name__}  {took:.1f} s"
                  + "".join(f"; {text}" for text in NOTES), flush=True)
            if problem:
                failed.append(each.__name__)
                print(problem + log, flush=True)
            elif skipped:
                lacking += 1
            else:
                passed += 1
    except KeyboardInterrupt:
        print("interrupted")
        failed.append("interrupted")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    names = ": " + ", ".join(failed) if failed else ""
    print(f"{passed} passed, {len(failed)} failed, {lacking} skipped{names}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
