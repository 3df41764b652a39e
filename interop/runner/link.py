"""The network between a client and a server: a UDP proxy on loopback.

    client ──► face ──► to_server: lost? corrupted? ─ queue, rate, delay ──► mapping ──► server
           ◄──      ◄── to_client: the same                              ◄──         ◄──

A `face` is an address that the client sends to; there is a second one for a server's preferred
address. A `mapping` is the address at which the server sees a client: a NAT that rebinds replaces
it. ECN marks cross the proxy unchanged.
"""

import asyncio
import random
import socket
from dataclasses import dataclass, field

from .packets import HANDSHAKE, INITIAL, ONE_RTT, RETRY, ZERO_RTT, packets

# IPv4 and UDP headers, which count towards the rate.
HEADERS = 28
LARGEST = 65_535
# `IPV6_RECVTCLASS` and `IPV6_TCLASS` are missing in some versions of the module.
IPV6_RECVTCLASS, IPV6_TCLASS = 66, 67


@dataclass
class Conditions:
    """What a network does to packets, in both directions unless stated otherwise."""

    delay_s: float = 0.015
    bits_per_s: float = 10e6
    queue_packets: int = 25
    # Of 100 packets; a burst loses up to this many in a row.
    lost_percent: float = 0
    corrupted_percent: float = 0
    burst: int = 3
    # Numbers of packets to the server that are lost, from 1.
    lost_to_server: frozenset = frozenset()
    # How long it is open and closed, in turn.
    open_s: float = 0
    closed_s: float = 0
    # When a NAT first rebinds, then how often; and whether the address changes too.
    first_rebind_s: float = 0
    rebind_every_s: float = 0
    rebinds_address: bool = False


@dataclass
class Seen:
    """What crossed the link, as its sender sent it."""

    # (from the client?, kind) -> versions
    versions: dict = field(default_factory=dict)
    # Source ids of the server's Initial packets: one for each handshake.
    handshakes: set = field(default_factory=set)
    retry_tokens: set = field(default_factory=set)
    client_tokens: set = field(default_factory=set)
    zero_rtt_bytes: int = 0
    # (from the client?) -> {mark: packets}
    marks: dict = field(default_factory=lambda: {True: {}, False: {}})
    # Addresses of the client to which the server has sent.
    mappings: set = field(default_factory=set)
    # Addresses of the server to which the client has sent 1-RTT packets.
    faces: set = field(default_factory=set)
    # Until the client's first Handshake packet has reached the server.
    server_received: int = 0
    server_sent: int = 0
    validated: bool = False
    most_amplified: float = 0
    lost: int = 0
    corrupted: int = 0

    def sent(self, is_client, datagram, mark):
        counts = self.marks[is_client]
        counts[mark] = counts.get(mark, 0) + 1
        for packet in packets(datagram):
            self.versions.setdefault((is_client, packet.kind), set()).add(packet.version)
            if is_client:
                self.client_sent(packet)
            elif packet.kind == INITIAL:
                self.handshakes.add(packet.source)
            elif packet.kind == RETRY:
                self.retry_tokens.add(packet.token)
        if not is_client and not self.validated:
            self.server_sent += len(datagram)
            allowed = max(self.server_received, 1)
            self.most_amplified = max(self.most_amplified, self.server_sent / allowed)

    def client_sent(self, packet):
        if packet.kind == INITIAL and packet.token:
            self.client_tokens.add(packet.token)
        elif packet.kind == ZERO_RTT:
            self.zero_rtt_bytes += packet.size

    def reached_server(self, datagram):
        self.server_received += len(datagram)
        if not self.validated:
            self.validated = any(packet.kind == HANDSHAKE for packet in packets(datagram))


class Way:
    """One direction: a queue in front of a slow line."""

    def __init__(self, loop, conditions, is_to_server, seen, rng):
        self.loop, self.conditions, self.rng, self.seen = loop, conditions, rng, seen
        self.is_to_server = is_to_server
        self.free_at, self.count = 0.0, 0
        self.losing = self.corrupting = 0

    def carry(self, datagram, deliver):
        conditions, now = self.conditions, self.loop.time()
        self.count += 1
        if self.is_lost():
            self.seen.lost += 1
            return
        if self.is_hit("corrupting", conditions.corrupted_percent):
            self.seen.corrupted += 1
            changed = bytearray(datagram)
            changed[self.rng.randrange(len(changed))] ^= self.rng.randrange(1, 256)
            datagram = bytes(changed)
        takes = (len(datagram) + HEADERS) * 8 / conditions.bits_per_s
        begins = max(now, self.free_at)
        if begins - now > conditions.queue_packets * 1500 * 8 / conditions.bits_per_s:
            self.seen.lost += 1
            return
        self.free_at = begins + takes
        self.loop.call_at(self.free_at + conditions.delay_s, deliver, datagram)

    def is_lost(self):
        conditions = self.conditions
        if self.is_to_server and self.count in conditions.lost_to_server:
            return True
        return self.is_hit("losing", conditions.lost_percent)

    def is_hit(self, what, percent):
        """Whether this fault hits this packet: at a rate, but never more than a burst in a row."""
        run = getattr(self, what)
        is_hit = run < self.conditions.burst and self.rng.random() * 100 < percent
        setattr(self, what, run + 1 if is_hit else 0)
        return is_hit


class Mapping:
    """Where the server sees a client: a separate socket."""

    def __init__(self, link, client):
        self.link, self.client = link, client
        self.socket = None
        self.bind(link.mapped_address())

    def bind(self, host):
        if self.socket is not None:
            self.link.loop.remove_reader(self.socket)
            self.socket.close()
        self.socket = udp_socket(self.link.family, host)
        self.link.loop.add_reader(self.socket, self.readable)

    def readable(self):
        own = self.socket
        for datagram, mark, server in received(own):
            link = self.link
            if link.is_closed():
                continue
            link.seen.sent(False, datagram, mark)
            link.seen.mappings.add(own.getsockname()[:2])
            face = link.faces_by_server.get(server[:2])
            if face is not None:
                deliver = sender(face, mark, self.client)
                link.to_client.carry(datagram, deliver)

    def close(self):
        self.link.loop.remove_reader(self.socket)
        self.socket.close()


class Link:
    """The network, while it exists."""

    def __init__(self, conditions, server_port, family=socket.AF_INET, seed=0):
        self.loop = asyncio.get_running_loop()
        self.conditions, self.family, self.seen = conditions, family, Seen()
        rng = random.Random(seed)
        self.to_server = Way(self.loop, conditions, True, self.seen, rng)
        self.to_client = Way(self.loop, conditions, False, self.seen, rng)
        # Mappings by the client's address; faces also by the server address behind each.
        self.mappings, self.faces, self.faces_by_server = {}, [], {}
        self.rebound, self.began, self.timer = 0, self.loop.time(), None
        hosts = ["::1"] if family == socket.AF_INET6 else ["127.0.0.1", "127.0.0.2"]
        for host in hosts:
            face = udp_socket(family, host)
            self.loop.add_reader(face, self.readable, face, (host, server_port))
            self.faces.append(face)
            self.faces_by_server[host, server_port] = face
        self.address = self.faces[0].getsockname()[:2]
        self.preferred = self.faces[-1].getsockname()[:2]

    def readable(self, face, server):
        for datagram, mark, client in received(face):
            if not self.mappings and self.conditions.first_rebind_s:
                # The clock of a NAT begins with the connection.
                self.timer = self.loop.call_later(self.conditions.first_rebind_s, self.rebind)
            if not self.mappings:
                self.began = self.loop.time()
            if self.is_closed():
                continue
            self.seen.sent(True, datagram, mark)
            if any(packet.kind == ONE_RTT for packet in packets(datagram)):
                self.seen.faces.add(server)
            mapping = self.mappings.get(client)
            if mapping is None:
                mapping = self.mappings[client] = Mapping(self, client)
            self.to_server.carry(datagram, self.arrival(mapping, mark, server))

    def arrival(self, mapping, mark, server):
        def deliver(datagram):
            self.seen.reached_server(datagram)
            send(mapping.socket, datagram, mark, server)

        return deliver

    def is_closed(self):
        """Whether the network is a black hole right now."""
        conditions = self.conditions
        period = conditions.open_s + conditions.closed_s
        since = self.loop.time() - self.began
        return period > 0 and since % period >= conditions.open_s

    def mapped_address(self):
        if self.family == socket.AF_INET6:
            return "::1"
        return f"127.0.0.{10 + self.rebound}" if self.conditions.rebinds_address else "127.0.0.1"

    def rebind(self):
        self.rebound += 1
        for mapping in self.mappings.values():
            mapping.bind(self.mapped_address())
        self.timer = self.loop.call_later(self.conditions.rebind_every_s, self.rebind)

    def close(self):
        if self.timer is not None:
            self.timer.cancel()
        for face in self.faces:
            self.loop.remove_reader(face)
            face.close()
        for mapping in self.mappings.values():
            mapping.close()


def udp_socket(family, host):
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVTCLASS, 1)
    else:
        made.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    made.bind((host, 0))
    return made


def received(own):
    """All datagrams waiting at a socket, with their marks and senders."""
    while True:
        try:
            datagram, ancillary, _, sender_ = own.recvmsg(LARGEST, 64)
        except (BlockingIOError, ConnectionRefusedError):
            return
        mark = ancillary[0][2][0] & 3 if ancillary else 0
        yield datagram, mark, sender_


def send(own, datagram, mark, to):
    # Sockets of a closed link no longer have a descriptor.
    if own.fileno() < 0:
        return
    level, kind = socket.IPPROTO_IP, socket.IP_TOS
    if own.family == socket.AF_INET6:
        level, kind = socket.IPPROTO_IPV6, IPV6_TCLASS
    marks = [(level, kind, mark.to_bytes(4, "little"))]
    try:
        own.sendmsg([datagram], marks, 0, to)
    except OSError:
        # Full buffers and closed ports lose packets, as networks do.
        return


def sender(own, mark, to):
    return lambda datagram: send(own, datagram, mark, to)
