"""The runner's test cases: what is transferred, over which network, and what must be seen."""

import random
import string
from dataclasses import dataclass, field

from .link import Conditions
from .packets import HANDSHAKE, INITIAL, VERSION_1, VERSION_2

KB, MB = 1 << 10, 1 << 20

# RFC 3168 §5.
ECT_0, ECT_1, CE = 2, 1, 3


@dataclass
class Evidence:
    """What is known about a run; `client` and `server` are squall's facts, or `None` for others."""

    seen: object
    client: object
    server: object
    # Frames that squall's client received, according to its qlog.
    client_frames: object

    def squall(self):
        return [facts for facts in (self.client, self.server) if facts is not None]


@dataclass
class Case:
    name: str
    about: str
    sizes: tuple
    # The name that the endpoints are given, if it differs.
    test: str = ""
    server_test: str = ""
    conditions: Conditions = field(default_factory=Conditions)
    timeout_s: float = 60
    checks: tuple = ()
    is_ipv6: bool = False
    chain: int = 1
    name_length: int = 12

    def client_case(self):
        return self.test or self.name

    def server_case(self):
        return self.server_test or self.test or self.name

    def names(self):
        rng = random.Random(self.name)
        letters = string.ascii_lowercase
        return ["".join(rng.choices(letters, k=self.name_length)) for _ in self.sizes]


def handshakes(number):
    def check(evidence):
        found = len(evidence.seen.handshakes)
        if found != number:
            return f"the server has sent Initial packets of {found} connections instead of {number}"

    return check


one_handshake = handshakes(1)


def no_retry(evidence):
    if evidence.seen.retry_tokens:
        return "the server has sent a Retry"


def retry(evidence):
    if not evidence.seen.retry_tokens:
        return "the server has sent no Retry"
    if not evidence.seen.retry_tokens & evidence.seen.client_tokens:
        return "the client has not used the token of the Retry"


def version_1(evidence):
    versions = evidence.seen.versions.get((False, INITIAL), set())
    if versions != {VERSION_1}:
        return f"the server speaks {named(versions)}"


def version_2(evidence):
    versions = evidence.seen.versions
    if VERSION_1 not in versions.get((True, INITIAL), set()):
        return "the client does not begin with version 1"
    for is_client in (True, False):
        found = versions.get((is_client, HANDSHAKE), set())
        if found != {VERSION_2}:
            end = "client" if is_client else "server"
            return f"the {end}'s Handshake packets are of {named(found)}"


def named(versions):
    names = {VERSION_1: "version 1", VERSION_2: "version 2"}
    return " and ".join(names.get(version, hex(version)) for version in versions) or "no version"


def resumed(evidence):
    for facts in evidence.squall():
        if facts.count("handshake_completed", resumed="true") != 1:
            return "the second handshake is a full one"


def early_data(evidence):
    if evidence.seen.zero_rtt_bytes == 0:
        return "the client has sent no 0-RTT packets"
    # The runner counts the rest, in 1-RTT packets, which includes MTU probes.
    if evidence.seen.zero_rtt_bytes < ZERO_RTT_FILES * ZERO_RTT_NAME // 2:
        return f"the client has sent only {evidence.seen.zero_rtt_bytes} bytes in 0-RTT packets"
    for facts in evidence.squall():
        if facts.count("early_data_answered", accepted="true") != 1:
            return "the server has not accepted early data"


def keys_updated(evidence):
    for facts in evidence.squall():
        if facts.count("keys_updated") == 0:
            return "the keys were not updated"


def ecn(evidence):
    for is_client in (True, False):
        end, marks = "client" if is_client else "server", evidence.seen.marks[is_client]
        if not marks.get(ECT_0, 0) + marks.get(ECT_1, 0):
            return f"the {end} does not mark packets as ECN-capable"
        if marks.get(CE, 0):
            return f"the {end} has sent packets that are marked as congested"
    for facts in evidence.squall():
        if facts.count("closed", ecn_capable="true") == 0:
            return "the peer has not reported the marks"


def amplification(evidence):
    # RFC 9000 §8.1 allows 3; the runner tolerates 4, for packets begun within the limit.
    if evidence.seen.most_amplified > 4:
        return f"the server has sent {evidence.seen.most_amplified:.1f} times what it received"


def rebound(evidence):
    if len(evidence.seen.mappings) < 2:
        return "the client had one address only"
    if evidence.server and evidence.server.most("paths_validated") == 0:
        return "the server has not validated the new path"
    if evidence.client and evidence.client_frames("path_challenge") == 0:
        return "the server has sent no PATH_CHALLENGE"


def migrated(evidence):
    if len(evidence.seen.faces) < 2:
        return "the client stays on the server's first address"


FILES = (no_retry, one_handshake, version_1)
ZERO_RTT_FILES, ZERO_RTT_NAME = 40, 250
MANY = 50

LOSSY = {"lost_percent": 30}
CORRUPT = {"corrupted_percent": 30}

CASES = [
    Case("handshake", "a connection and a small file", (KB,), checks=FILES),
    Case("transfer", "several files at once; windows grow", (2 * MB, 3 * MB, 5 * MB), checks=FILES),
    Case("longrtt", "a round trip of 1.5 s", (KB,), test="handshake",
         conditions=Conditions(delay_s=0.75), checks=FILES),
    Case("chacha20", "ChaCha20-Poly1305 and nothing else", (3 * MB,), checks=FILES),
    Case("multiplexing", "1,999 files on one connection", (32,) * 1999, test="transfer",
         checks=FILES),
    Case("retry", "a Retry before the handshake", (10 * KB,),
         checks=(one_handshake, version_1, retry)),
    Case("resumption", "a second, resumed handshake", (5 * KB, 10 * KB),
         checks=(handshakes(2), version_1, resumed)),
    Case("zerortt", "requests in early data", (32,) * ZERO_RTT_FILES, name_length=ZERO_RTT_NAME,
         checks=(handshakes(2), version_1, early_data)),
    Case("http3", "files over HTTP/3", (5 * KB, 10 * KB, 500 * KB), checks=FILES),
    Case("blackhole", "nothing passes for 2 s of every 7", (10 * MB,), test="transfer",
         conditions=Conditions(open_s=5, closed_s=2), checks=FILES),
    Case("keyupdate", "an early key update", (3 * MB,), server_test="transfer",
         checks=(*FILES, keys_updated)),
    Case("ecn", "marks in both directions, and reports of them", (100 * KB,),
         checks=(*FILES, ecn)),
    Case("amplificationlimit", "a long chain of certificates; the client's packets 2 to 7 are lost",
         (5 * KB,), test="transfer", chain=9,
         conditions=Conditions(lost_to_server=frozenset(range(2, 8))),
         checks=(*FILES, amplification)),
    Case("handshakeloss", "50 connections; 30 % of all packets are lost", (KB,) * MANY,
         test="multiconnect", conditions=Conditions(**LOSSY), timeout_s=300,
         checks=(handshakes(MANY), version_1)),
    Case("transferloss", "2 % of all packets are lost", (2 * MB,), test="transfer",
         conditions=Conditions(lost_percent=2), checks=FILES),
    Case("handshakecorruption", "50 connections; 30 % of all packets are corrupted",
         (KB,) * MANY, test="multiconnect", conditions=Conditions(**CORRUPT), timeout_s=300,
         checks=(handshakes(MANY), version_1)),
    Case("transfercorruption", "2 % of all packets are corrupted", (2 * MB,), test="transfer",
         conditions=Conditions(corrupted_percent=2), checks=FILES),
    Case("ipv6", "the same over IPv6", (5 * KB, 10 * KB), test="transfer", is_ipv6=True,
         checks=FILES),
    Case("v2", "a change to version 2 within the handshake", (KB,),
         checks=(one_handshake, version_2)),
    Case("rebind-port", "a NAT changes the client's port every 5 s", (10 * MB,), test="transfer",
         conditions=Conditions(first_rebind_s=1, rebind_every_s=5), checks=(*FILES, rebound)),
    Case("rebind-addr", "a NAT changes the client's address every 5 s", (10 * MB,),
         test="transfer",
         conditions=Conditions(first_rebind_s=1, rebind_every_s=5, rebinds_address=True),
         checks=(*FILES, rebound)),
    Case("connectionmigration", "the client moves to the server's preferred address", (2 * MB,),
         test="transfer", server_test="connectionmigration", checks=(*FILES, migrated)),
]
