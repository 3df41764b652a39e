"""The participants: how each is installed, and which program is either end.

A program is a list of arguments, run with the runner's environment. All but two are endpoints that
follow the runner's contract; for curl and squall's own commands, a program derives the arguments
from the environment.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INTEROP = Path(__file__).resolve().parent.parent
ROOT = INTEROP.parent


class Missing(Exception):
    """A peer that cannot be installed."""


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()


def run(command, **options):
    """Runs one step of an installation."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        last = done.stdout.decode(errors="replace").strip().splitlines()[-8:]
        raise Missing(f"{' '.join(map(str, command))}: " + "\n".join(last))


def cargo(manifest, package, *, build, binary):
    """A program of ours, built with the profile `build`, or as it is if that is empty."""
    if not build:
        program = target() / "debug" / binary
        if not program.exists():
            raise Missing(f"{program} is not built")
        return str(program)
    release = build == "release"
    profile = ["--release"] if release else []
    run(["cargo", "build", "--locked", "--manifest-path", manifest, "--target-dir", target(),
         "--package", package, "--bin", binary, *profile], cwd=ROOT)
    return str(target() / ("release" if release else "debug") / binary)


@dataclass
class Peer:
    """Installed by `install`, which returns the programs of client and server; one may be missing,
    with the reason."""

    name: str
    install: object
    is_squall: bool = False
    # The only case that it supports, if there is just one.
    only: str = ""


def squall(build):
    program = cargo(ROOT / "Cargo.toml", "squall-interop", build=build, binary="squall-endpoint")
    return [program], [program]


def commands(build):
    program = cargo(ROOT / "Cargo.toml", "squall-cli", build=build, binary="squall")
    adapter = [sys.executable, str(INTEROP / "runner" / "commands.py"), program]
    return adapter, adapter


def python():
    run([INTEROP / "aioquic" / "setup"])
    return str(INTEROP / ".venv" / "bin" / "python")


def aioquic(build):
    del build
    program = [python(), str(INTEROP / "aioquic" / "endpoint.py")]
    return program, program


def curl(build):
    del build
    return [python(), str(INTEROP / "curl" / "endpoint.py")], "curl is a client"


def quic_go(build):
    del build
    run([INTEROP / "quic-go" / "setup"])
    program = [str(INTEROP / "quic-go" / "endpoint")]
    return program, program


def in_peers(stack):
    def install(build):
        run([ROOT / "peers" / "setup"])
        program = cargo(ROOT / "peers" / "Cargo.toml", "squall-peers", build=build,
                        binary="squall-peers")
        return [program, "endpoint", stack], [program, "endpoint", stack]

    return install


PEERS = [
    Peer("squall", squall, is_squall=True),
    Peer("squall-commands", commands, only="http3"),
    Peer("aioquic", aioquic),
    Peer("quic-go", quic_go),
    Peer("quinn", in_peers("quinn")),
    Peer("quiche", in_peers("quiche")),
    Peer("s2n-quic", in_peers("s2n-quic")),
    Peer("curl", curl, only="http3"),
]
