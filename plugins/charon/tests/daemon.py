# SPDX-License-Identifier: MIT
"""A scripted lockgated: speaks protocol.h, does no IPsec, and misbehaves when told to."""

import collections
import itertools
import os
import random
import socket
import struct
import threading
import time

KINDS = {
    1: "HELLO", 2: "GET_SPI", 3: "ADD_SA", 4: "UPDATE_SA", 5: "QUERY_SA", 6: "DELETE_SA",
    7: "ADD_POLICY", 8: "QUERY_POLICY", 9: "DELETE_POLICY", 10: "FLUSH_SAS",
    11: "FLUSH_POLICIES", 13: "NAME_SA", 14: "RESUME_SAS", 15: "RESUMED",
}
ANSWER, ACQUIRE, EXPIRE, MAPPING = 0x80, 0x101, 0x102, 0x103
FIELDS = {
    1: "STATUS", 2: "TEXT", 3: "CHARON", 4: "PLUGIN", 5: "SOURCE", 6: "DESTINATION", 7: "SPI",
    8: "REQID", 9: "MODE", 10: "DIRECTION", 11: "ENCRYPTION", 12: "KEY", 13: "INTEGRITY",
    14: "INTEGRITY_KEY", 15: "ESN", 16: "WINDOW", 17: "ENCAPSULATION", 18: "SOFT", 19: "HARD",
    20: "SOURCE_SELECTOR", 21: "DESTINATION_SELECTOR", 22: "INITIATOR", 23: "REPEAT",
    24: "NEW_SOURCE", 25: "NEW_DESTINATION", 26: "USE", 27: "ACTION", 28: "PRIORITY",
    29: "HARDNESS", 30: "IKE", 31: "CHILD", 32: "HANDLE", 33: "HANDLES", 34: "CHARON_ID",
}
NUMBERS = {name: number for number, name in FIELDS.items()}
DONE, REFUSED, UNKNOWN, NO_SUITE, TAKEN = 0, 1, 2, 3, 7
INBOUND, OUTBOUND, FORWARD = 1, 2, 3
VERSION, MAX_HANDLES = 2, 1000

# The fields of a request: those that it must have, may have, and those that may repeat.
POLICY = {"DIRECTION", "SOURCE", "DESTINATION", "SOURCE_SELECTOR", "DESTINATION_SELECTOR",
          "ACTION", "REQID", "SPI", "PRIORITY"}
SELECTORS = {"SOURCE_SELECTOR", "DESTINATION_SELECTOR"}
SHAPES = {
    "HELLO": ({"CHARON_ID", "CHARON", "PLUGIN"}, set(), set()),
    "GET_SPI": ({"SOURCE", "DESTINATION"}, set(), set()),
    "ADD_SA": (SELECTORS | {
        "SOURCE", "DESTINATION", "SPI", "DIRECTION", "REQID", "MODE", "ENCRYPTION", "KEY",
        "INTEGRITY", "INTEGRITY_KEY", "ESN", "WINDOW", "ENCAPSULATION", "SOFT", "HARD",
        "INITIATOR"}, set(), SELECTORS),
    "UPDATE_SA": ({"HANDLE", "NEW_SOURCE", "NEW_DESTINATION", "ENCAPSULATION"},
                  SELECTORS | {"REQID"}, SELECTORS),
    "QUERY_SA": ({"HANDLE"}, set(), set()),
    "DELETE_SA": ({"HANDLE"}, set(), set()),
    "ADD_POLICY": (POLICY | {"REPEAT"}, set(), set()),
    "QUERY_POLICY": (SELECTORS | {"DIRECTION"}, set(), set()),
    "DELETE_POLICY": (POLICY, set(), set()),
    "FLUSH_SAS": (set(), set(), set()),
    "FLUSH_POLICIES": (set(), set(), set()),
    "NAME_SA": ({"HANDLE", "REQID", "IKE", "CHILD"}, set(), set()),
    "RESUME_SAS": ({"HANDLES"}, set(), set()),
    "RESUMED": (set(), set(), set()),
}


def field(name, value):
    return struct.pack(">HH", NUMBERS[name], len(value)) + value


def message(kind, number, incarnation, fields):
    return struct.pack(">IHHIIQ", 0x4C474B4D, VERSION, kind, number, 24 + len(fields),
                       incarnation) + fields


def address(text, port):
    return socket.inet_aton(text) + struct.pack(">H", port)


def selector(first, last, protocol=0, ports=(0, 65535)):
    return (struct.pack(">BBHH", protocol, 0, *ports) + socket.inet_aton(first)
            + socket.inet_aton(last))


class Message:
    """A request as it came. Reading it checks its shape."""

    def __init__(self, data):
        magic, version, kind, number, length, incarnation = struct.unpack(">IHHIIQ", data[:24])
        assert (magic, version, length) == (0x4C474B4D, VERSION, len(data)), data[:24].hex()
        self.kind = KINDS[kind]
        self.number = number
        self.incarnation = incarnation
        self.fields = []
        at = 24
        while at < len(data):
            name, size = struct.unpack(">HH", data[at:at + 4])
            assert at + 4 + size <= len(data)
            self.fields.append((FIELDS[name], data[at + 4:at + 4 + size]))
            at += 4 + size
        needed, more, many = SHAPES[self.kind]
        names = [name for name, _ in self.fields]
        assert needed <= set(names) <= needed | more, (self.kind, names)
        assert all(names.count(name) == 1 or name in many for name in names), names

    def get(self, name):
        return next((value for found, value in self.fields if found == name), None)

    def all(self, name):
        return [value for found, value in self.fields if found == name]

    def number_of(self, name):
        value = self.get(name)
        return None if value is None else int.from_bytes(value, "big")

    def handles(self):
        """Of a RESUME_SAS."""
        value = self.get("HANDLES")
        assert 0 < len(value) <= 8 * MAX_HANDLES and len(value) % 8 == 0, len(value)
        return list(struct.unpack(f">{len(value) // 8}Q", value))

    def policy(self):
        """The name of a policy: lockgated has one of a name."""
        without = "REPEAT", "PRIORITY"
        return tuple((name, value) for name, value in self.fields if name not in without)

    def __repr__(self):
        return f"{self.kind}(handle={self.number_of('HANDLE')})"


class Daemon:
    """Serves one path. start() is a new incarnation, stop() is its death."""

    def __init__(self, path):
        self.path = path
        self.history = []      # every message of every incarnation
        self.wrong = []        # what the peer did against the protocol
        self.crossed = collections.Counter()  # how often each key came, over all incarnations
        self.issued = itertools.count(random.getrandbits(40) << 20 | 1)  # handles, none twice
        self.charon = None     # the number of the charon that was connected last
        self.kills = []
        self.listener = None
        self.connection = None
        self.thread = None
        self.incarnation = 0
        self.lock = threading.RLock()
        self.clear()
        self.before = None     # before(message): what to do in place of answering, or None
        self.use = {}          # direction: packets, bytes, idle
        self.no_suites = set()

    def clear(self):
        self.sas = {}          # handle: its ADD_SA
        self.names = {}
        self.reserved = {}     # handle: address, SPI
        self.policies = set()
        self.connected = threading.Event()
        self.resumed = threading.Event()

    # Life.

    def start(self, incarnation=None):
        assert self.listener is None
        if incarnation is None:
            incarnation = random.getrandbits(64) | 1
        if incarnation != self.incarnation:
            self.clear()
        self.connected.clear()
        self.resumed.clear()
        self.incarnation = incarnation
        if os.path.exists(self.path):
            os.unlink(self.path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(4)
        self.thread = threading.Thread(target=self.accept, args=(self.listener,), daemon=True)
        self.thread.start()
        return self

    def stop(self):
        with self.lock:
            listener, self.listener = self.listener, None
            if listener:
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()
        self.hang_up()
        if self.thread and self.thread is not threading.current_thread():
            self.thread.join(5)

    def hang_up(self):
        """Ends the connection; the incarnation lives."""
        with self.lock:
            connection, self.connection = self.connection, None
            if connection:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                connection.close()
            self.connected.clear()
            self.resumed.clear()

    def renew(self):
        """A new incarnation in the place of this one: whoever connects at once is served."""
        with self.lock:
            self.incarnation = random.getrandbits(64) | 1
            self.clear()
            self.hang_up()

    def accept(self, listener):
        while self.listener is listener:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if self.connection:
                threading.Thread(target=self.turn_away, args=(connection,), daemon=True).start()
                continue
            self.connection = connection
            threading.Thread(target=self.serve, args=(connection, self.incarnation),
                             daemon=True).start()

    def turn_away(self, connection):
        with connection:
            data = connection.recv(65536)
            if data:
                number = struct.unpack(">I", data[8:12])[0]
                connection.send(message(ANSWER, number, self.incarnation,
                                        field("STATUS", struct.pack(">H", TAKEN))))

    def serve(self, connection, incarnation):
        told = False
        while True:
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            try:
                request = Message(data)
            except Exception as error:  # whatever is wrong with it is the test's business
                self.wrong.append(f"{data.hex()}: {error!r}")
                break
            request.arrived_in = incarnation
            request.arrived_at = time.monotonic()
            self.history.append(request)
            self.crossed.update(value for name, value in request.fields
                                if name in ("KEY", "INTEGRITY_KEY") and value)
            if request.incarnation != (incarnation if told else 0):
                self.wrong.append(f"{request} names incarnation {request.incarnation:x}")
            told = told or request.kind == "HELLO"
            try:
                instead = self.before(request) if self.before else None
                if instead == "silence":
                    continue
                if isinstance(instead, bytes):
                    connection.send(instead)
                    continue
                if isinstance(instead, (int, float)):
                    time.sleep(instead)
                fields = self.carry_out(request)
                connection.send(message(ANSWER, request.number, incarnation, fields))
                if instead == "stop after":
                    self.kills.append(request.kind)
                    self.stop()
            except OSError:
                break
            if request.kind == "HELLO":
                self.connected.set()
            if request.kind == "RESUMED":
                self.resumed.set()
        with self.lock:
            if self.connection is connection:
                self.connection = None
                self.connected.clear()
                self.resumed.clear()
        connection.close()

    # Requests.

    def carry_out(self, request):
        status, more = getattr(self, "do_" + request.kind.lower())(request)
        return field("STATUS", struct.pack(">H", status)) + more

    def do_hello(self, request):
        self.seen_handles, self.seen_policies = set(), set()
        if request.get("CHARON_ID") != self.charon:
            self.charon = request.get("CHARON_ID")
            assert len(self.charon) == 16 and any(self.charon)
            self.sas, self.names, self.reserved = {}, {}, {}
        return DONE, b""

    def issue(self):
        handle = next(self.issued)
        self.seen_handles.add(handle)
        return handle, field("HANDLE", struct.pack(">Q", handle))

    def do_resume_sas(self, request):
        named = request.handles()
        assert len(set(named)) == len(named) and not self.seen_handles & set(named), named
        lacking = [handle for handle in named
                   if handle not in self.sas and handle not in self.reserved]
        self.seen_handles.update(named)
        return DONE, lacking and field("HANDLES", struct.pack(f">{len(lacking)}Q", *lacking)) or b""

    def do_resumed(self, _):
        self.sas = {handle: sa for handle, sa in self.sas.items() if handle in self.seen_handles}
        self.reserved = {handle: spi for handle, spi in self.reserved.items()
                         if handle in self.seen_handles}
        self.policies = set(self.seen_policies)
        return DONE, b""

    def do_get_spi(self, request):
        spi = random.randrange(0xC0000000, 0xD0000000)
        handle, encoded = self.issue()
        self.reserved[handle] = request.get("DESTINATION")[:-2], spi
        return DONE, field("SPI", struct.pack(">I", spi)) + encoded

    def do_add_sa(self, request):
        if request.number_of("ENCRYPTION") in self.no_suites:
            return NO_SUITE, field("TEXT", b"not built in")
        if request.number_of("DIRECTION") == INBOUND:
            reserved = [handle for handle, spi in self.reserved.items()
                        if spi == (request.get("DESTINATION")[:-2], request.number_of("SPI"))]
            if not reserved:
                return UNKNOWN, field("TEXT", b"that SPI was not reserved")
            del self.reserved[reserved[0]]
        request.handle, encoded = self.issue()
        self.sas[request.handle] = request
        return DONE, encoded

    def do_update_sa(self, request):
        return (DONE if request.number_of("HANDLE") in self.sas else UNKNOWN), b""

    def do_query_sa(self, request):
        sa = self.sas.get(request.number_of("HANDLE"))
        if not sa:
            return UNKNOWN, b""
        use = self.use.get(sa.number_of("DIRECTION"), (0, 0, 2**64 - 1))
        return DONE, field("USE", struct.pack(">QQQ", *use))

    def do_delete_sa(self, request):
        handle = request.number_of("HANDLE")
        found = self.reserved.pop(handle, None) or self.sas.pop(handle, None)
        return (DONE if found else UNKNOWN), b""

    def do_add_policy(self, request):
        self.policies.add(request.policy())
        self.seen_policies.add(request.policy())
        return DONE, b""

    def do_query_policy(self, _):
        return DONE, field("USE", struct.pack(">QQQ", 0, 0, 2**64 - 1))

    def do_delete_policy(self, request):
        if request.policy() not in self.policies:
            return UNKNOWN, b""
        self.policies.remove(request.policy())
        self.seen_policies.discard(request.policy())
        return DONE, b""

    def do_name_sa(self, request):
        handle = request.number_of("HANDLE")
        if handle not in self.sas:
            return UNKNOWN, b""
        names = (request.get("IKE"), request.get("CHILD"))
        assert all(0 < len(name) <= 128 and name.decode("ascii").isprintable() for name in names)
        assert self.sas[handle].number_of("DIRECTION") == INBOUND
        self.names[handle] = names
        return DONE, b""

    def do_flush_sas(self, _):
        self.sas = {}
        return DONE, b""

    def do_flush_policies(self, _):
        self.policies = set()
        return DONE, b""

    # What lockgated tells.

    def tell(self, kind, fields):
        self.connection.send(message(kind, 0, self.incarnation, fields))

    def acquire(self, reqid, source, destination):
        self.tell(ACQUIRE, field("REQID", struct.pack(">I", reqid))
                  + field("SOURCE_SELECTOR", source) + field("DESTINATION_SELECTOR", destination))

    def expire(self, sa, hard):
        self.tell(EXPIRE, field("HANDLE", struct.pack(">Q", sa.handle))
                  + field("HARDNESS", bytes([hard])))

    def mapping(self, sa, new_source):
        self.tell(MAPPING, field("HANDLE", struct.pack(">Q", sa.handle))
                  + field("NEW_SOURCE", new_source))

    # For assertions.

    def kinds(self):
        """Kinds of all requests but names, which come beside the others."""
        return [request.kind for request in list(self.history) if request.kind != "NAME_SA"]

    def of(self, direction):
        return [sa for sa in list(self.sas.values()) if sa.number_of("DIRECTION") == direction]
