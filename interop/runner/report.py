"""The matrix, for people and for programs."""

import datetime
import json
from dataclasses import asdict

from .cell import FAILED, PASSED, SKIPPED

OWN = "squall"
MARKS = {PASSED: "✓", FAILED: "✗", SKIPPED: "–"}


def as_json(results):
    rows = [asdict(result) for result in results]
    return json.dumps({"date": str(datetime.date.today()), "results": rows}, indent=2)


def table(results):
    """Rows of cases, columns of pairs, and the reasons for what has not passed."""
    pairs = list(dict.fromkeys((result.client, result.server) for result in results))
    cases = list(dict.fromkeys(result.case for result in results))
    by_cell = {(result.client, result.server, result.case): result for result in results}
    return pairs, cases, by_cell


def reasons(results):
    """Each reason once, with its cases: for failures by pair, and for what a peer lacks."""
    failed, missing = {}, {}
    for result in results:
        if result.outcome == FAILED:
            key = f"{result.client} ► {result.server}", result.reason
            failed.setdefault(key, []).append(result.case)
        elif result.outcome == SKIPPED:
            # Without the role that reported it.
            reason = result.reason.split(": ", 1)[-1]
            missing.setdefault(reason, []).append(result.case)
    return failed, missing


def as_text(results):
    pairs, cases, by_cell = table(results)
    lines = []
    for client, server in pairs:
        cells = [by_cell.get((client, server, case)) for case in cases]
        cells = [cell for cell in cells if cell]
        passed = sum(cell.outcome == PASSED for cell in cells)
        lines.append(f"{client} ► {server}: {passed} of {len(cells)} passed")
        for cell in cells:
            said = f"   {cell.reason}" if cell.reason else ""
            lines.append(f"  {MARKS[cell.outcome]} {cell.case:<20} {cell.seconds:6.1f} s{said}")
    return "\n".join(lines)


def as_markdown(results, date=None):
    """A table with a column for each peer, which holds squall's client and squall's server; and the
    reasons."""
    _, cases, by_cell = table(results)
    ends = dict.fromkeys(end for result in results for end in (result.client, result.server))
    peers = [end for end in ends if end != OWN or (OWN, OWN, cases[0]) in by_cell]
    lines = [
        f"Run on {date or datetime.date.today()}. In each column: squall as the client, then as the "
        "server. ✓ passed, ✗ failed, – not supported by the peer; empty: not tried.",
        "",
        "| case | " + " | ".join(peers) + " |",
        "|---|" + ":-:|" * len(peers),
    ]
    for case in cases:
        cells = []
        for peer in peers:
            pairs = [(OWN, peer), (peer, OWN)] if peer != OWN else [(OWN, OWN)]
            found = (by_cell.get((*pair, case)) for pair in pairs)
            cells.append(" ".join(MARKS[cell.outcome] for cell in found if cell))
        lines.append(f"| `{case}` | " + " | ".join(cells) + " |")
    failed, missing = reasons(results)
    if failed:
        lines += ["", "Failed, client ► server:", ""]
        lines += [f"- {pair}, {names(cases)}: {reason}" for (pair, reason), cases in failed.items()]
    if missing:
        lines += ["", "Not supported:", ""]
        lines += [f"- {names(cases)}: {reason}" for reason, cases in missing.items()]
    return "\n".join(lines)


def names(cases):
    return ", ".join(f"`{case}`" for case in dict.fromkeys(cases))
