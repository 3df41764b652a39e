"""One case between one client and one server."""

import asyncio
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .cases import Evidence
from .facts import Facts
from .link import Link

UNSUPPORTED = 127
# How long a server may take to bind its port, and to end when told to.
START_S, STOP_S = 15, 5

PASSED, FAILED, SKIPPED = "passed", "failed", "unsupported"


@dataclass
class Result:
    client: str
    server: str
    case: str
    outcome: str
    reason: str
    seconds: float


class Ended(Exception):
    """A run that ends early: its outcome and the reason."""


class Process:
    """An end, with its output in a file."""

    def __init__(self, name, role, program, environment, log):
        self.name, self.role, self.program = name, role, program
        self.environment, self.log, self.child = environment, log, None

    async def start(self):
        with open(self.log, "wb") as log:
            # Its own process group, so that a program's children end with it.
            self.child = await asyncio.create_subprocess_exec(
                *self.program, env=self.environment, stdout=log, stderr=log,
                stdin=asyncio.subprocess.DEVNULL, start_new_session=True)

    def output(self):
        return self.log.read_text(errors="replace")

    def last_line(self):
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        said = [line for line in lines if not line.startswith("squall: connection=")]
        return (said or lines or ["no word"])[-1][:300]

    def ended(self):
        """The reason for an end with an error."""
        code = self.child.returncode
        who = f"{self.name}'s {self.role}"
        if code == UNSUPPORTED:
            return Ended(SKIPPED, f"{who}: {self.last_line()}")
        return Ended(FAILED, f"{who} ends with {code}: {self.last_line()}")

    async def stop(self):
        if self.child is None or self.child.returncode is not None:
            return
        for number, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            try:
                os.killpg(self.child.pid, number)
                await asyncio.wait_for(self.child.wait(), patience)
                return
            except ProcessLookupError:
                return
            except asyncio.TimeoutError:
                continue


class Cell:
    def __init__(self, client, server, case, certificates, logs, seed):
        # Each is (peer, program).
        self.client, self.server, self.case, self.seed = client, server, case, seed
        # A folder of certificates per chain length.
        self.certificates = certificates
        names = (self.client[0].name, self.server[0].name)
        self.logs = Path(logs) / "-".join((*names, case.name))
        self.names = case.names()

    async def run(self):
        began = time.monotonic()
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="squall-interop-") as folder:
            folder = Path(folder)
            try:
                for program in (self.client[1], self.server[1]):
                    if isinstance(program, str):
                        raise Ended(SKIPPED, program)
                await self.transfer(folder)
                outcome, reason = PASSED, ""
            except Ended as ended:
                outcome, reason = ended.args
        seconds = time.monotonic() - began
        names = (self.client[0].name, self.server[0].name)
        return Result(*names, self.case.name, outcome, reason, round(seconds, 1))

    async def transfer(self, folder):
        www, downloads, certs = folder / "www", folder / "downloads", self.certificates
        for made in (www, downloads):
            made.mkdir()
        rng = random.Random(self.seed)
        for name, size in zip(self.names, self.case.sizes):
            (www / name).write_bytes(rng.randbytes(size))
        port = free_port()
        family = socket.AF_INET6 if self.case.is_ipv6 else socket.AF_INET
        link = Link(self.case.conditions, port, family, self.seed)
        server, client = self.processes(link, port, www, downloads, certs)
        try:
            await self.serve(server, port)
            await self.fetch(server, client)
        finally:
            await client.stop()
            await server.stop()
            link.close()
        compare(www, downloads, self.names)
        self.check(link, client, server)

    def processes(self, link, port, www, downloads, certs):
        host = "server6" if self.case.is_ipv6 else "server4"
        address, link_port = link.address
        urls = [f"https://{host}:{link_port}/{name}" for name in self.names]
        ends = []
        for role, (peer, program) in (("server", self.server), ("client", self.client)):
            qlogs = self.logs / f"qlog-{role}"
            qlogs.mkdir()
            environment = {
                **os.environ,
                "ROLE": role,
                "TESTCASE": getattr(self.case, f"{role}_case")(),
                "WWW": str(www),
                "CERTS": str(certs),
                "DOWNLOADS": str(downloads),
                "REQUESTS": " ".join(urls),
                "RESOLVE": f"{host}={address}",
                "LISTEN": f"[::]:{port}",
                "PREFERRED_IPV4": ":".join(map(str, link.preferred)),
                "SSLKEYLOGFILE": str(self.logs / f"keys-{role}.log"),
            }
            if self.case.is_ipv6:
                del environment["PREFERRED_IPV4"]
            if peer.is_squall:
                environment["QLOGDIR"] = str(qlogs)
            log = self.logs / f"{role}.log"
            ends.append(Process(peer.name, role, program, environment, log))
        return ends

    async def serve(self, server, port):
        """Starts the server and waits for its port."""
        await server.start()
        deadline = time.monotonic() + START_S
        while not is_bound(port):
            if server.child.returncode is not None:
                raise server.ended()
            if time.monotonic() > deadline:
                raise Ended(FAILED, f"{server.name}'s server does not bind its port")
            await asyncio.sleep(0.02)

    async def fetch(self, server, client):
        await client.start()
        try:
            await asyncio.wait_for(client.child.wait(), self.case.timeout_s)
        except asyncio.TimeoutError:
            limit = self.case.timeout_s
            raise Ended(FAILED, f"{client.name}'s client is not done after {limit} s") from None
        if client.child.returncode != 0:
            raise client.ended()
        if server.child.returncode is not None:
            raise server.ended()

    def check(self, link, client, server):
        facts = [
            Facts(end.output()) if peer.is_squall else None
            for end, (peer, _) in ((client, self.client), (server, self.server))
        ]

        def client_frames(frame):
            logs = (self.logs / "qlog-client").iterdir()
            return sum(log.read_bytes().count(f'"{frame}"'.encode()) for log in logs)

        evidence = Evidence(link.seen, *facts, client_frames)
        for check in self.case.checks:
            reason = check(evidence)
            if reason:
                raise Ended(FAILED, reason)


def compare(www, downloads, names):
    """Checks that every file is there, byte for byte, and no other."""
    found = {path.name for path in downloads.iterdir()}
    if found - set(names):
        raise Ended(FAILED, f"unexpected files: {sorted(found - set(names))[:3]}")
    for name in names:
        if name not in found:
            raise Ended(FAILED, f"a file is missing ({len(found)} of {len(names)} are there)")
        if (www / name).read_bytes() != (downloads / name).read_bytes():
            raise Ended(FAILED, "a file was changed on its way")


def free_port():
    """A UDP port that is currently free."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.bind(("::", 0))
        return probe.getsockname()[1]


def is_bound(port):
    """Whether some process uses this UDP port."""
    wanted = f":{port:04X} "
    for table in ("/proc/net/udp", "/proc/net/udp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        if any(wanted in " ".join(line.split()[1:2]) + " " for line in lines):
            return True
    return False
