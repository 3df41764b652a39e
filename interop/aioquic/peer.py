"""aioquic as a peer controlled by a test.

    peer.py server CERTIFICATE KEY [--retry] [--suite NAME]
    peer.py client PORT ROOTS [--suite NAME] [--version 1|2]

Every stream of the other side is digested; bidirectional ones are echoed as they arrive. Events are reported on
standard output, one line each:

    listening PORT                          a server is ready
    connected ALPN VERSION                  the handshake is complete
    resumed YES|NO early YES|NO             by a ticket; its early data was taken (told with `connected`)
    sent STREAM BYTES SHA256                a stream was opened and given all of this
    stream STREAM BYTES SHA256              a stream has ended, this is what it brought
    reset STREAM CODE                       the other side gave a stream up
    stopped STREAM CODE                     the other side wants no more of a stream
    closed transport|application CODE TEXT  the connection ended

Commands arrive on standard input, one per line:

    send bi|uni BYTES         open a stream, send so much
    reset STREAM CODE         give a stream up
    stop STREAM CODE          want no more of a stream
    update-keys               start a key update
    change-id                 use another connection id of the other side's
    close CODE TEXT           end the connection
    again BYTES               a client: connect once more, with the last ticket, and send so much at once on one stream

At the end of the input the program ends, so it never outlives the test.
"""

import argparse
import asyncio
import hashlib
import sys

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite

ALPN = "squall-interop"
NAME = "localhost"
SUITES = {
    "AES_128_GCM_SHA256": CipherSuite.AES_128_GCM_SHA256,
    "AES_256_GCM_SHA384": CipherSuite.AES_256_GCM_SHA384,
    "CHACHA20_POLY1305_SHA256": CipherSuite.CHACHA20_POLY1305_SHA256,
}
VERSIONS = {1: QuicProtocolVersion.VERSION_1, 2: QuicProtocolVersion.VERSION_2}


def tell(*words):
    print(*words, flush=True)


def yes(flag):
    return "YES" if flag else "NO"


class Peer(QuicConnectionProtocol):
    """One connection. Commands apply to the newest one."""

    current = None

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.received = {}
        self.ours = set()
        Peer.current = self

    def quic_event_received(self, event):
        match event:
            case events.HandshakeCompleted():
                tell("connected", event.alpn_protocol, self.version())
                tell("resumed", yes(event.session_resumed), "early", yes(event.early_data_accepted))
            case events.StreamDataReceived():
                self.take(event.stream_id, event.data, event.end_stream)
            case events.StreamReset():
                tell("reset", event.stream_id, event.error_code)
            case events.StopSendingReceived():
                tell("stopped", event.stream_id, event.error_code)
            case events.ConnectionTerminated():
                kind = "application" if event.frame_type is None else "transport"
                tell("closed", kind, event.error_code, event.reason_phrase)

    def version(self):
        # aioquic has no public name for it.
        return {number: version for version, number in VERSIONS.items()}[self._quic._version]

    def take(self, stream, data, end):
        digest, length = self.received.get(stream, (hashlib.sha256(), 0))
        digest.update(data)
        self.received[stream] = digest, length + len(data)
        unidirectional = stream & 2 != 0
        if stream not in self.ours and not unidirectional:
            self._quic.send_stream_data(stream, data, end_stream=end)
        if end:
            tell("stream", stream, length + len(data), digest.hexdigest())

    def send(self, kind, length):
        stream = self._quic.get_next_available_stream_id(is_unidirectional=kind == "uni")
        self.ours.add(stream)
        # Bytes that look random and are the same in every run.
        data = hashlib.shake_128(str(stream).encode()).digest(length)
        self._quic.send_stream_data(stream, data, end_stream=True)
        tell("sent", stream, length, hashlib.sha256(data).hexdigest())

    def obey(self, words):
        match words:
            case ["send", kind, length]:
                self.send(kind, int(length))
            case ["reset", stream, code]:
                self._quic.reset_stream(int(stream), int(code))
            case ["stop", stream, code]:
                self._quic.stop_stream(int(stream), int(code))
            case ["update-keys"]:
                self._quic.request_key_update()
            case ["change-id"]:
                self._quic.change_connection_id()
            case ["again", length]:
                asyncio.get_running_loop().create_task(Client.again(int(length)))
            case ["close", code, text]:
                self._quic.close(error_code=int(code), reason_phrase=text)
            case _:
                sys.exit(f"peer.py: no such command: {words}")
        self.transmit()


def configuration(arguments, is_client):
    made = QuicConfiguration(is_client=is_client, alpn_protocols=[ALPN], server_name=NAME)
    if arguments.suite:
        made.cipher_suites = [SUITES[arguments.suite]]
    return made


async def server(arguments):
    settings = configuration(arguments, is_client=False)
    settings.load_cert_chain(arguments.certificate, arguments.key)
    loop = asyncio.get_running_loop()
    # Each ticket can be used once, so early data cannot be replayed.
    tickets = {}
    transport, _ = await loop.create_datagram_endpoint(
        lambda: QuicServer(
            configuration=settings,
            create_protocol=Peer,
            retry=arguments.retry,
            session_ticket_fetcher=lambda label: tickets.pop(label, None),
            session_ticket_handler=lambda ticket: tickets.update({ticket.ticket: ticket}),
        ),
        local_addr=("127.0.0.1", 0),
    )
    tell("listening", transport.get_extra_info("sockname")[1])


class Client:
    """What a client needs to connect, and to reconnect."""

    settings = None
    port = None

    @staticmethod
    def keep(ticket):
        Client.settings.session_ticket = ticket
        tell("ticket")

    @staticmethod
    async def connect(early=None):
        connection = QuicConnection(
            configuration=Client.settings, session_ticket_handler=Client.keep
        )
        _, peer = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Peer(connection), local_addr=("127.0.0.1", 0)
        )
        # With a ticket, whatever is written before the handshake completes is early data.
        peer.connect(("127.0.0.1", Client.port), transmit=early is None)
        if early is not None:
            peer.send("bi", early)
            peer.transmit()

    @staticmethod
    async def again(length):
        await Client.connect(early=length)


async def client(arguments):
    settings = configuration(arguments, is_client=True)
    settings.load_verify_locations(cafile=arguments.roots)
    if arguments.version:
        settings.original_version = VERSIONS[arguments.version]
        settings.supported_versions = [VERSIONS[arguments.version]]
    Client.settings = settings
    Client.port = arguments.port
    await Client.connect()


async def main():
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(required=True)
    role = roles.add_parser("server")
    role.add_argument("certificate")
    role.add_argument("key")
    role.add_argument("--retry", action="store_true")
    role.add_argument("--suite", choices=SUITES)
    role.set_defaults(start=server)
    role = roles.add_parser("client")
    role.add_argument("port", type=int)
    role.add_argument("roots")
    role.add_argument("--suite", choices=SUITES)
    role.add_argument("--version", type=int, choices=VERSIONS)
    role.set_defaults(start=client)
    arguments = parser.parse_args()
    await arguments.start(arguments)

    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        Peer.current.obey(line.decode().rstrip("\n").split(" ", 2))


asyncio.run(main())
