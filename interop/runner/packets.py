"""What an observer sees of QUIC packets: long headers, and lengths (RFC 8999, RFC 9000 §17.2)."""

from dataclasses import dataclass

INITIAL, ZERO_RTT, HANDSHAKE, RETRY = "initial", "0rtt", "handshake", "retry"
VERSION_NEGOTIATION, ONE_RTT = "version_negotiation", "1rtt"

VERSION_1, VERSION_2 = 1, 0x6B3343CF

# RFC 9000 §17.2, RFC 9369 §3.2: version 2 numbers the types differently.
TYPES = {
    VERSION_1: (INITIAL, ZERO_RTT, HANDSHAKE, RETRY),
    VERSION_2: (RETRY, INITIAL, ZERO_RTT, HANDSHAKE),
}

# The integrity tag at the end of a Retry packet (RFC 9000 §17.2.5).
RETRY_TAG = 16


@dataclass
class Packet:
    kind: str
    size: int
    version: int = 0
    destination: bytes = b""
    source: bytes = b""
    token: bytes = b""


class Reader:
    """Takes fields off the front of a datagram; raises `IndexError` at its end."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        end = self.at + length
        if end > len(self.data):
            raise IndexError
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def byte(self):
        return self.take(1)[0]

    def varint(self):
        first = self.byte()
        rest = self.take((1 << (first >> 6)) - 1)
        return int.from_bytes(bytes([first & 0x3F]) + rest, "big")


def packets(datagram):
    """The packets of a datagram, in order. Stops early where it is not QUIC."""
    reader = Reader(datagram)
    while reader.at < len(datagram):
        begin = reader.at
        try:
            packet = one(reader, len(datagram))
        except IndexError:
            return
        if packet is None:
            return
        packet.size = reader.at - begin
        yield packet


def one(reader, end):
    first = reader.byte()
    if not first & 0x80:
        reader.at = end
        return Packet(ONE_RTT, 0)
    version = int.from_bytes(reader.take(4), "big")
    destination = reader.take(reader.byte())
    source = reader.take(reader.byte())
    if version == 0:
        reader.at = end
        return Packet(VERSION_NEGOTIATION, 0, 0, destination, source)
    if version not in TYPES:
        return None
    packet = Packet(TYPES[version][first >> 4 & 3], 0, version, destination, source)
    if packet.kind == RETRY:
        packet.token = reader.take(end - reader.at)[:-RETRY_TAG]
        return packet
    if packet.kind == INITIAL:
        packet.token = reader.take(reader.varint())
    reader.take(reader.varint())
    return packet
