"""aioquic under the contract of the QUIC interop runner, in either role.

The environment is that of squall's own endpoint (`interop/src/bin/endpoint`).
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.asyncio.client import connect
from aioquic.h0.connection import H0_ALPN, H0Connection
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite

UNSUPPORTED = 127
TICKET_PATIENCE_S = 5

BOTH = {"handshake", "transfer", "multiplexing", "chacha20", "retry", "resumption", "zerortt",
        "multiconnect", "http3", "v2"}
# What a case needs that aioquic lacks.
MISSING = {
    "ecn": "aioquic does not mark packets",
    "connectionmigration": "aioquic announces no preferred address",
}


class Protocol(QuicConnectionProtocol):
    """A connection that speaks HTTP/0.9 or HTTP/3."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        alpn = self._quic.configuration.alpn_protocols
        self.http = (H3Connection if alpn == H3_ALPN else H0Connection)(self._quic)
        self.files, self.waiting = {}, {}

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            for waiting in self.waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError(event.reason_phrase or "closed"))
        for http_event in self.http.handle_event(event):
            self.http_event_received(http_event)


class Server(Protocol):
    def http_event_received(self, event):
        if not isinstance(event, HeadersReceived):
            return
        name = dict(event.headers)[b":path"].decode().removeprefix("/")
        file = Path(setting("WWW", "/www")) / name
        if "/" in name or name.startswith(".") or not file.is_file():
            self.http.send_headers(event.stream_id, [(b":status", b"404")], end_stream=True)
        else:
            self.http.send_headers(event.stream_id, [(b":status", b"200")])
            self.http.send_data(event.stream_id, file.read_bytes(), end_stream=True)
        self.transmit()


class Client(Protocol):
    def http_event_received(self, event):
        if not isinstance(event, DataReceived | HeadersReceived):
            return
        if isinstance(event, DataReceived):
            self.files[event.stream_id].write(event.data)
        elif dict(event.headers).get(b":status", b"200") != b"200":
            self.waiting[event.stream_id].set_exception(FileNotFoundError(event.stream_id))
            return
        if event.stream_ended:
            self.files[event.stream_id].close()
            self.waiting[event.stream_id].set_result(None)

    def request(self, url):
        """Sends a request; the result is set when the response is complete."""
        parts = urlsplit(url)
        stream = self._quic.get_next_available_stream_id()
        self.files[stream] = open(Path(setting("DOWNLOADS", "/downloads")) / parts.path[1:], "wb")
        done = self.waiting[stream] = asyncio.get_running_loop().create_future()
        headers = [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", parts.netloc.encode()),
            (b":path", parts.path.encode()),
        ]
        self.http.send_headers(stream, headers, end_stream=True)
        return done


class Tickets:
    """The tickets of a server."""

    def __init__(self):
        self.known = {}

    def add(self, ticket):
        self.known[ticket.ticket] = ticket

    def pop(self, label):
        return self.known.pop(label, None)


def setting(name, usual=""):
    return os.environ.get(name) or usual


def configuration(is_client, case):
    made = QuicConfiguration(
        is_client=is_client, alpn_protocols=H3_ALPN if case == "http3" else H0_ALPN)
    if case == "chacha20":
        made.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
    if case == "v2":
        # A client begins with version 1 and offers both.
        made.supported_versions = [QuicProtocolVersion.VERSION_2, QuicProtocolVersion.VERSION_1]
        made.original_version = QuicProtocolVersion.VERSION_1
    else:
        made.supported_versions = [QuicProtocolVersion.VERSION_1]
    if path := setting("SSLKEYLOGFILE"):
        made.secrets_log_file = open(path, "a")
    return made


async def run_server(case):
    made = configuration(False, case)
    certs = setting("CERTS", "/certs")
    made.load_cert_chain(f"{certs}/cert.pem", f"{certs}/priv.key")
    host, port = setting("LISTEN", "[::]:443").rsplit(":", 1)
    tickets, stopped = Tickets(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = await serve(
        host.strip("[]"), int(port), configuration=made, create_protocol=Server,
        session_ticket_fetcher=tickets.pop, session_ticket_handler=tickets.add,
        retry=case == "retry")
    await stopped.wait()
    server.close()


class Fetcher:
    """The connections of a client, one after another."""

    def __init__(self, made, case):
        self.made, self.case = made, case
        self.came = asyncio.Event()

    def add(self, ticket):
        self.made.session_ticket = ticket
        self.came.set()

    async def fetch(self, urls, is_early=False):
        host, port = urlsplit(urls[0]).hostname, urlsplit(urls[0]).port
        fixed = dict(pair.split("=") for pair in setting("RESOLVE").split())
        self.made.server_name = host
        connecting = connect(
            fixed.get(host, host), port or 443, configuration=self.made, create_protocol=Client,
            session_ticket_handler=self.add, wait_connected=not is_early)
        async with connecting as client:
            if self.case == "keyupdate":
                await client.ping()
                client.request_key_update()
            waiting = [client.request(url) for url in urls]
            client.transmit()
            await asyncio.gather(*waiting)


async def run_client(case):
    made = configuration(True, case)
    made.load_verify_locations(setting("CERTS", "/certs") + "/ca.pem")
    fetcher, urls = Fetcher(made, case), setting("REQUESTS").split()
    if case == "multiconnect":
        for url in urls:
            made.session_ticket = None
            await fetcher.fetch([url])
    elif case in ("resumption", "zerortt"):
        await fetcher.fetch(urls[:1])
        await asyncio.wait_for(fetcher.came.wait(), TICKET_PATIENCE_S)
        await fetcher.fetch(urls[1:], is_early=case == "zerortt")
    else:
        await fetcher.fetch(urls)


def main():
    role, case = setting("ROLE"), setting("TESTCASE")
    if case in MISSING or case not in BOTH | ({"keyupdate"} if role == "client" else set()):
        print(MISSING.get(case, f"no such case: {case}"), file=sys.stderr)
        return UNSUPPORTED
    asyncio.run(run_server(case) if role == "server" else run_client(case))
    return 0


sys.exit(main())
