"""What the matrix counts as a failure: `python3 -m unittest discover -s interop/runner/tests -t interop`."""

import asyncio
import socket
import tempfile
import unittest
from pathlib import Path

from runner import cases
from runner.cell import Ended, compare
from runner.facts import Facts
from runner.link import Conditions, Link, Seen
from runner.packets import HANDSHAKE, INITIAL, ONE_RTT, RETRY, VERSION_1, VERSION_2, packets


def long(version, kind_bits, payload, token=b""):
    """A long header with ids of 2 bytes; Initial packets have a token, all but Retry a length."""
    head = bytes([0xC0 | kind_bits << 4]) + version.to_bytes(4, "big") + b"\x02dd\x02ss"
    if (version, kind_bits) in ((VERSION_1, 0), (VERSION_2, 1)):
        head += bytes([len(token)]) + token
    return head + bytes([len(payload)]) + payload


class Packets(unittest.TestCase):
    def test_packets_of_both_versions_in_one_datagram(self):
        initial, handshake = long(VERSION_1, 0, b"12345", b"tok"), long(VERSION_1, 2, b"abc")
        found = list(packets(initial + handshake + b"\x40short"))
        kinds = [(packet.kind, packet.size) for packet in found]
        self.assertEqual(kinds, [(INITIAL, len(initial)), (HANDSHAKE, len(handshake)), (ONE_RTT, 6)])
        self.assertEqual((found[0].token, found[0].source), (b"tok", b"ss"))
        second = list(packets(long(VERSION_2, 1, b"12345") + long(VERSION_2, 3, b"abc")))
        self.assertEqual([packet.kind for packet in second], [INITIAL, HANDSHAKE])

    def test_a_retry_ends_with_its_tag(self):
        retry = bytes([0xF0]) + VERSION_1.to_bytes(4, "big") + b"\x02dd\x02ss" + b"token" + bytes(16)
        self.assertEqual([(p.kind, p.token) for p in packets(retry)], [(RETRY, b"token")])

    def test_garbage_ends_a_datagram(self):
        whole = long(VERSION_1, 0, b"12345")
        for end in range(1, len(whole)):
            self.assertLessEqual(len(list(packets(whole[:end]))), 1)
        self.assertEqual(list(packets(b"\xc0\x12\x34\x56\x78" + bytes(20))), [])


def facts(*lines):
    return Facts("\n".join(f"squall: connection=1 {line}" for line in lines))


def evidence(client=(), frames=0, **seen):
    return cases.Evidence(Seen(**seen), facts(*client), None, lambda _: frames)


TOKEN = {b"token"}
BOTH = {(True, INITIAL): {VERSION_1}, (True, HANDSHAKE): {VERSION_2}, (False, HANDSHAKE): {VERSION_2}}
MARKED, UNMARKED = {cases.ECT_0: 9}, {0: 9}

# A check, what it must accept, and what it must not.
CHECKS = [
    (cases.one_handshake, evidence(handshakes={b"a"}), [evidence(), evidence(handshakes={b"a", b"b"})]),
    (cases.no_retry, evidence(), [evidence(retry_tokens=TOKEN)]),
    (cases.retry, evidence(retry_tokens=TOKEN, client_tokens=TOKEN),
     [evidence(), evidence(client_tokens=TOKEN), evidence(retry_tokens=TOKEN)]),
    (cases.version_1, evidence(versions={(False, INITIAL): {VERSION_1}}),
     [evidence(), evidence(versions={(False, INITIAL): {VERSION_1, VERSION_2}})]),
    (cases.version_2, evidence(versions=BOTH),
     [evidence(), evidence(versions={**BOTH, (False, HANDSHAKE): {VERSION_1}}),
      evidence(versions={**BOTH, (True, INITIAL): {VERSION_2}})]),
    (cases.resumed, evidence(["handshake_completed resumed=false", "handshake_completed resumed=true"]),
     [evidence(), evidence(["handshake_completed resumed=false"] * 2)]),
    (cases.early_data, evidence(["early_data_answered accepted=true"], zero_rtt_bytes=9000),
     [evidence(["early_data_answered accepted=true"]),
      evidence(["early_data_answered accepted=true"], zero_rtt_bytes=4000),
      evidence(["early_data_answered accepted=false"], zero_rtt_bytes=9000)]),
    (cases.keys_updated, evidence(["keys_updated by_peer=false"]), [evidence()]),
    (cases.ecn, evidence(["closed ecn_capable=true"], marks={True: MARKED, False: MARKED}),
     [evidence(["closed ecn_capable=true"], marks={True: MARKED, False: UNMARKED}),
      evidence(["closed ecn_capable=true"], marks={True: UNMARKED, False: MARKED}),
      evidence(["closed ecn_capable=false"], marks={True: MARKED, False: MARKED})]),
    (cases.amplification, evidence(most_amplified=3.0), [evidence(most_amplified=4.1)]),
    (cases.rebound, evidence(mappings={1, 2}, frames=1),
     [evidence(mappings={1}, frames=1), evidence(mappings={1, 2})]),
    (cases.migrated, evidence(faces={1, 2}), [evidence(faces={1})]),
]


class Checks(unittest.TestCase):
    def test_every_check_tells_a_run_that_did_it_from_one_that_did_not(self):
        for check, good, bad in CHECKS:
            with self.subTest(check=check.__name__):
                self.assertIsNone(check(good))
                for one in bad:
                    self.assertIsNotNone(check(one))

    def test_every_check_of_a_case_is_tested(self):
        tested = {check for check, _, _ in CHECKS}
        for case in cases.CASES:
            for check in case.checks:
                self.assertTrue(check in tested or check.__qualname__.startswith("handshakes."))

    def test_files_are_compared_byte_for_byte(self):
        with tempfile.TemporaryDirectory() as folder:
            www, downloads = Path(folder, "www"), Path(folder, "downloads")
            for made in (www, downloads):
                made.mkdir()
            (www / "a").write_bytes(b"content")
            with self.assertRaises(Ended):
                compare(www, downloads, ["a"])
            (downloads / "a").write_bytes(b"c0ntent")
            with self.assertRaises(Ended):
                compare(www, downloads, ["a"])
            (downloads / "a").write_bytes(b"content")
            compare(www, downloads, ["a"])
            (downloads / "b").write_bytes(b"")
            with self.assertRaises(Ended):
                compare(www, downloads, ["a"])


class Network(unittest.TestCase):
    def crossing(self, conditions, count):
        """Which numbered datagrams reach a server, and from how many addresses."""

        async def run():
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            server.bind(("127.0.0.1", 0))
            server.setblocking(False)
            link = Link(conditions, server.getsockname()[1])
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            for number in range(1, count + 1):
                client.sendto(bytes([number]) * 40, link.address)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            found = []
            while True:
                try:
                    found.append(server.recvfrom(100))
                except BlockingIOError:
                    break
            link.close()
            server.close()
            client.close()
            return found, link.seen

        return asyncio.run(run())

    def test_datagrams_are_lost_by_number(self):
        found, seen = self.crossing(Conditions(lost_to_server=frozenset({2, 4})), 5)
        self.assertEqual([datagram[0] for datagram, _ in found], [1, 3, 5])
        self.assertEqual(seen.lost, 2)

    def test_datagrams_are_corrupted_at_a_rate(self):
        found, seen = self.crossing(Conditions(corrupted_percent=50), 20)
        broken = sum(datagram != bytes([datagram[39]]) * 40 for datagram, _ in found)
        self.assertEqual(len(found), 20)
        self.assertGreater(seen.corrupted, 2)
        self.assertGreaterEqual(broken, seen.corrupted - 1)

    def test_a_nat_rebinds_to_other_addresses(self):
        conditions = Conditions(first_rebind_s=0.05, rebind_every_s=0.05, rebinds_address=True)
        found, _ = self.crossing(conditions, 12)
        self.assertGreater(len({sender[0] for _, sender in found}), 1)


if __name__ == "__main__":
    unittest.main()
