# SPDX-License-Identifier: MIT
"""A scripted lockgated: speaks protocol.h, does no IPsec, and misbehaves when told to."""

import os
import random
import socket
import struct
import threading
import time

KINDS = {
    1: "HELLO", 2: "GET_SPI", 3: "ADD_SA", 4: "UPDATE_SA", 5: "QUERY_SA", 6: "DELETE_SA",
    7: "ADD_POLICY", 8: "QUERY_POLICY", 9: "DELETE_POLICY", 10: "FLUSH_SAS",
    11: "FLUSH_POLICIES", 12: "REPEATED", 13: "NAME_SA",
}
ANSWER, ACQUIRE, EXPIRE, MAPPING = 0x80, 0x101, 0x102, 0x103
FIELDS = {
    1: "STATUS", 2: "TEXT", 3: "CHARON", 4: "PLUGIN", 5: "SOURCE", 6: "DESTINATION", 7: "SPI",
    8: "REQID", 9: "MODE", 10: "DIRECTION", 11: "ENCRYPTION", 12: "KEY", 13: "INTEGRITY",
    14: "INTEGRITY_KEY", 15: "ESN", 16: "WINDOW", 17: "ENCAPSULATION", 18: "SOFT", 19: "HARD",
    20: "SOURCE_SELECTOR", 21: "DESTINATION_SELECTOR", 22: "INITIATOR", 23: "REPEAT",
    24: "NEW_SOURCE", 25: "NEW_DESTINATION", 26: "USE", 27: "ACTION", 28: "PRIORITY",
    29: "HARDNESS", 30: "IKE", 31: "CHILD",
}
NUMBERS = {name: number for number, name in FIELDS.items()}
DONE, REFUSED, UNKNOWN, NO_SUITE, TAKEN, KEY_USED = 0, 1, 2, 3, 7, 8
INBOUND, OUTBOUND, FORWARD = 1, 2, 3

# The fields of a request: those that it must have, may have, and those that may repeat.
SA = {"SOURCE", "DESTINATION", "SPI"}
POLICY = {"DIRECTION", "SOURCE", "DESTINATION", "SOURCE_SELECTOR", "DESTINATION_SELECTOR",
          "ACTION", "REQID", "SPI", "PRIORITY"}
SELECTORS = {"SOURCE_SELECTOR", "DESTINATION_SELECTOR"}
SHAPES = {
    "HELLO": ({"CHARON", "PLUGIN"}, set(), set()),
    "GET_SPI": ({"SOURCE", "DESTINATION"}, set(), set()),
    "ADD_SA": (SA | SELECTORS | {
        "DIRECTION", "REQID", "MODE", "ENCRYPTION", "KEY", "INTEGRITY", "INTEGRITY_KEY", "ESN",
        "WINDOW", "ENCAPSULATION", "SOFT", "HARD", "INITIATOR", "REPEAT"}, set(), SELECTORS),
    "UPDATE_SA": (SA | {"NEW_SOURCE", "NEW_DESTINATION", "ENCAPSULATION"},
                  SELECTORS | {"REQID"}, SELECTORS),
    "QUERY_SA": (SA, set(), set()),
    "DELETE_SA": (SA, set(), set()),
    "ADD_POLICY": (POLICY | {"REPEAT"}, set(), set()),
    "QUERY_POLICY": (SELECTORS | {"DIRECTION"}, set(), set()),
    "DELETE_POLICY": (POLICY, set(), set()),
    "FLUSH_SAS": (set(), set(), set()),
    "FLUSH_POLICIES": (set(), set(), set()),
    "REPEATED": (set(), set(), set()),
    "NAME_SA": (SA | {"REQID", "IKE", "CHILD"}, set(), set()),
}


def field(name, value):
    return struct.pack(">HH", NUMBERS[name], len(value)) + value


def message(kind, number, incarnation, fields):
    return struct.pack(">IHHIIQ", 0x4C474B4D, 1, kind, number, 24 + len(fields),
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
        assert (magic, version, length) == (0x4C474B4D, 1, len(data)), data[:24].hex()
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

    def identity(self):
        """Of an SA."""
        return self.get("DESTINATION")[:-2], self.number_of("SPI")

    def policy(self):
        """The name of a policy: lockgated has one of a name."""
        without = "REPEAT", "PRIORITY"
        return tuple((name, value) for name, value in self.fields if name not in without)

    def __repr__(self):
        return f"{self.kind}(spi={self.get('SPI').hex() if self.get('SPI') else None})"


class Daemon:
    """Serves one path. start() is a new incarnation, stop() is its death."""

    def __init__(self, path):
        self.path = path
        self.history = []      # every message of every incarnation
        self.wrong = []        # what the peer did against the protocol
        self.kills = []
        self.listener = None
        self.connection = None
        self.thread = None
        self.incarnation = 0
        self.lock = threading.RLock()
        self.clear()
        self.before = None     # before(message): what to do in place of answering, or None
        self.use = {}          # (destination, spi) or direction: packets, bytes, idle
        self.no_suites = set()

    def clear(self):
        self.sas = {}
        self.names = {}
        self.reserved = set()
        self.policies = set()
        self.connected = threading.Event()
        self.repeated = threading.Event()

    # Life.

    def start(self, incarnation=None):
        assert self.listener is None
        if incarnation is None:
            incarnation = random.getrandbits(64) | 1
        if incarnation != self.incarnation:
            self.clear()
        self.connected.clear()
        self.repeated.clear()
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
            self.repeated.clear()

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
            if request.kind == "REPEATED":
                self.repeated.set()
        with self.lock:
            if self.connection is connection:
                self.connection = None
                self.connected.clear()
                self.repeated.clear()
        connection.close()

    # Requests.

    def carry_out(self, request):
        status, more = getattr(self, "do_" + request.kind.lower())(request)
        return field("STATUS", struct.pack(">H", status)) + more

    def do_hello(self, _):
        self.seen_sas, self.seen_policies = set(), set()
        return DONE, b""

    def do_repeated(self, _):
        self.sas = {key: sa for key, sa in self.sas.items() if key in self.seen_sas}
        self.policies = set(self.seen_policies)
        return DONE, b""

    def do_get_spi(self, request):
        spi = random.randrange(0xC0000000, 0xD0000000)
        self.reserved.add((request.get("DESTINATION")[:-2], spi))
        return DONE, field("SPI", struct.pack(">I", spi))

    def do_add_sa(self, request):
        key = request.identity()
        if request.number_of("ENCRYPTION") in self.no_suites:
            return NO_SUITE, field("TEXT", b"not built in")
        if request.number_of("REPEAT") != (key in self.sas):
            return (UNKNOWN if request.number_of("REPEAT") else KEY_USED), b""
        if not request.number_of("REPEAT") and request.number_of("DIRECTION") == INBOUND:
            if key not in self.reserved:
                return UNKNOWN, field("TEXT", b"that SPI was not reserved")
            self.reserved.discard(key)
        self.sas[key] = request
        self.seen_sas.add(key)
        return DONE, b""

    def do_update_sa(self, request):
        sa = self.sas.pop(request.identity(), None)
        if not sa:
            return UNKNOWN, b""
        key = request.get("NEW_DESTINATION")[:-2], request.number_of("SPI")
        self.sas[key] = sa
        self.seen_sas.add(key)
        return DONE, b""

    def do_query_sa(self, request):
        sa = self.sas.get(request.identity())
        if not sa:
            return UNKNOWN, b""
        use = self.use.get(sa.number_of("DIRECTION"), (0, 0, 2**64 - 1))
        return DONE, field("USE", struct.pack(">QQQ", *use))

    def do_delete_sa(self, request):
        key = request.identity()
        if key in self.reserved:
            self.reserved.discard(key)
            return DONE, b""
        return (DONE if self.sas.pop(key, None) else UNKNOWN), b""

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
        key = request.identity()
        if key not in self.sas:
            return UNKNOWN, b""
        names = (request.get("IKE"), request.get("CHILD"))
        assert all(0 < len(name) <= 128 and name.decode("ascii").isprintable() for name in names)
        self.names[key] = names
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
        self.tell(EXPIRE, field("SPI", sa.get("SPI")) + field("DESTINATION", sa.get("DESTINATION"))
                  + field("HARDNESS", bytes([hard])))

    def mapping(self, sa, new_source):
        self.tell(MAPPING, field("SPI", sa.get("SPI")) + field("DESTINATION", sa.get("DESTINATION"))
                  + field("NEW_SOURCE", new_source))

    # For assertions.

    def kinds(self):
        """Kinds of all requests but names, which come beside the others."""
        return [request.kind for request in list(self.history) if request.kind != "NAME_SA"]

    def of(self, direction):
        return [sa for sa in list(self.sas.values()) if sa.number_of("DIRECTION") == direction]

    def keys_by_incarnation(self):
        """Each key that ever came, with the incarnations that it came to."""
        seen = {}
        for request in self.history:
            for name in ("KEY", "INTEGRITY_KEY"):
                if request.kind == "ADD_SA" and request.get(name):
                    seen.setdefault(request.get(name), set()).add(request.arrived_in)
        return seen
