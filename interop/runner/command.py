"""The command line of `interop/matrix`."""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from . import certificates, report
from .cases import CASES
from .cell import FAILED, SKIPPED, Cell, Result
from .peers import PEERS, Missing

# Peers whose HTTP/3 is tried with squall's own commands in a short run.
SHORT = ("aioquic", "quic-go", "quiche")


def arguments():
    parser = argparse.ArgumentParser(
        prog="interop/matrix",
        description="Runs the test cases of the QUIC interop runner between squall and other "
        "stacks, over loopback, and prints which pass.",
        epilog="The exit code is 1 if a case failed or a peer could not be installed.")
    names = ", ".join(peer.name for peer in PEERS)
    parser.add_argument("--peers", type=words, metavar="NAME,…",
                        help=f"only these peers ({names})")
    parser.add_argument("--cases", type=words, metavar="NAME,…",
                        help=f"only these cases ({', '.join(case.name for case in CASES)})")
    parser.add_argument("--role", choices=("client", "server"),
                        help="squall's role; both by default")
    parser.add_argument("--short", action="store_true",
                        help="only HTTP/3: `squall get` and `squall serve` with "
                        f"{', '.join(SHORT)}; what is not supported counts as a failure")
    profile = parser.add_mutually_exclusive_group()
    profile.add_argument("--debug", dest="build", action="store_const", const="debug",
                         default="release", help="build without optimization")
    profile.add_argument("--no-build", dest="build", action="store_const", const="",
                         help="run what was built without optimization before")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="cases at a time (default: one for each core)")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="of losses, corruptions and files (default: 0)")
    parser.add_argument("--logs", metavar="DIR",
                        help="where the ends' output and qlogs go (default: a temporary folder)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print a table, with the date")
    form.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args()


def words(text):
    return [word for word in text.split(",") if word]


def main():
    given = arguments()
    unknown = set(given.cases or ()) - {case.name for case in CASES}
    unknown |= set(given.peers or ()) - {peer.name for peer in PEERS}
    if unknown:
        print(f"interop/matrix: unknown: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if given.short:
        given.peers, given.cases = ["squall-commands", *SHORT], ["http3"]
    wanted = [peer for peer in PEERS if not given.peers or peer.name in given.peers]
    cases = [case for case in CASES if not given.cases or case.name in given.cases]
    with_itself = any(peer.is_squall for peer in wanted)
    programs, missing = install(wanted, given.build, short=given.short)
    logs = given.logs or tempfile.mkdtemp(prefix="squall-interop-logs-")
    chains = {length: Path(logs, f"certificates-{length}") for length in {c.chain for c in cases}}
    for length, folder in chains.items():
        certificates.make(folder, length)
    cells = [
        Cell(client, server, case, chains[case.chain], logs, given.seed)
        for client, server in pairs(programs, given.role, with_itself)
        for case in cases
        if all(end[0].only in ("", case.name) for end in (client, server))
    ]
    results = asyncio.run(run(cells, given.jobs))
    results += missing
    if given.json:
        print(report.as_json(results))
    elif given.markdown:
        print(report.as_markdown(results))
    else:
        print(report.as_text(results))
    print(f"output of the ends: {logs}", file=sys.stderr)
    bad = {FAILED, SKIPPED} if given.short else {FAILED}
    return int(any(result.outcome in bad for result in results))


def install(wanted, build, *, short):
    """The programs of each peer, squall's first; and missing ones as failures."""
    if not short and not any(peer.is_squall for peer in wanted):
        wanted = [PEERS[0], *wanted]
    programs, missing = [], []
    for peer in wanted:
        print(f"installing {peer.name}", file=sys.stderr)
        try:
            client, server = peer.install(build)
        except Missing as reason:
            print(f"{peer.name}: {reason}", file=sys.stderr)
            name = f"cannot be installed: {str(reason).splitlines()[0]}"
            missing.append(Result("squall", peer.name, "installation", FAILED, name, 0.0))
            continue
        programs.append((peer, client, server))
    return programs, missing


def pairs(programs, role, with_itself):
    """squall with itself, and with each other peer in both roles."""
    own, *others = programs
    ends = []
    if with_itself:
        ends.append(((own[0], own[1]), (own[0], own[2])))
    for peer, client, server in others:
        if role != "server" and not isinstance(server, str):
            ends.append(((own[0], own[1]), (peer, server)))
        if role != "client" and not isinstance(client, str):
            ends.append(((peer, client), (own[0], own[2])))
    return ends


async def run(cells, jobs):
    """Runs all cells, `jobs` at a time, and keeps their order."""
    places = asyncio.Semaphore(jobs)

    async def one(cell):
        async with places:
            result = await cell.run()
        said = f": {result.reason}" if result.reason else ""
        print(f"{result.client} ► {result.server} {result.case}: {result.outcome}{said}",
              file=sys.stderr)
        return result

    return await asyncio.gather(*(one(cell) for cell in cells))
