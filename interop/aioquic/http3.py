"""aioquic as an HTTP/3 client controlled by a test.

    http3.py PORT ROOTS

Commands arrive on standard input, one per line:

    get PATH
    post PATH BYTES           a body that looks random and is the same in every run

Each is answered on standard output:

    sent BYTES SHA256                       the body of a post
    answer STATUS BYTES SHA256 TRAILERS     TRAILERS as name=value, `-` if there are none
    failed CODE BYTES                       the stream was reset, after so many bytes of body

and once at the end:

    closed CODE TEXT                        the server ended the connection

At the end of the input the program ends, so it never outlives the test.
"""

import asyncio
import hashlib
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

NAME = "localhost"


def tell(*words):
    print(*words, flush=True)


class Exchange:
    """A request and the part of its answer that has arrived."""

    def __init__(self):
        self.status, self.trailers = None, "-"
        self.digest, self.length = hashlib.sha256(), 0
        self.done = asyncio.get_running_loop().create_future()


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.http = H3Connection(self._quic)
        self.exchanges = {}

    def quic_event_received(self, event):
        match event:
            case events.StreamReset() if event.stream_id in self.exchanges:
                exchange = self.exchanges.pop(event.stream_id)
                exchange.done.set_result(("failed", event.error_code, exchange.length))
            case events.ConnectionTerminated():
                tell("closed", event.error_code, event.reason_phrase)
        for http_event in self.http.handle_event(event):
            self.take(http_event)

    def take(self, event):
        exchange = self.exchanges.get(getattr(event, "stream_id", None))
        match event:
            case HeadersReceived() if exchange and exchange.status is None:
                exchange.status = dict(event.headers)[b":status"].decode()
            case HeadersReceived() if exchange:
                pairs = (f"{name.decode()}={value.decode()}" for name, value in event.headers)
                exchange.trailers = ",".join(pairs)
            case DataReceived() if exchange:
                exchange.digest.update(event.data)
                exchange.length += len(event.data)
            case _:
                return
        if event.stream_ended:
            del self.exchanges[event.stream_id]
            digest = exchange.digest.hexdigest()
            answer = ("answer", exchange.status, exchange.length, digest, exchange.trailers)
            exchange.done.set_result(answer)

    async def ask(self, method, path, length):
        stream = self._quic.get_next_available_stream_id()
        exchange = self.exchanges[stream] = Exchange()
        headers = [
            (b":method", method.upper().encode()),
            (b":scheme", b"https"),
            (b":authority", NAME.encode()),
            (b":path", path.encode()),
        ]
        body = hashlib.shake_128(path.encode()).digest(length)
        self.http.send_headers(stream, headers, end_stream=not body)
        if method == "post":
            tell("sent", length, hashlib.sha256(body).hexdigest())
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        tell(*await exchange.done)


async def main():
    port, roots = sys.argv[1:]
    settings = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name=NAME)
    settings.load_verify_locations(cafile=roots)
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    where = ("127.0.0.1", int(port))
    async with connect(*where, configuration=settings, create_protocol=Client) as client:
        while line := await commands.readline():
            match line.decode().split():
                case ["get", path]:
                    await client.ask("get", path, 0)
                case ["post", path, length]:
                    await client.ask("post", path, int(length))
                case words:
                    sys.exit(f"http3.py: no such command: {words}")


asyncio.run(main())
