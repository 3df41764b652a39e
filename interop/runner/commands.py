"""`squall get` and `squall serve` under the contract of the interop runner: the case `http3`.

    commands.py SQUALL
"""

import os
import sys
from urllib.parse import urlsplit

UNSUPPORTED = 127


def main():
    squall, environment = sys.argv[1], os.environ
    if environment["TESTCASE"] != "http3":
        print("squall's commands speak HTTP/3 only", file=sys.stderr)
        return UNSUPPORTED
    if environment["ROLE"] == "server":
        certs = environment["CERTS"]
        arguments = ["serve", environment["WWW"], "--listen", environment["LISTEN"],
                     "--cert", f"{certs}/cert.pem", "--key", f"{certs}/priv.key"]
    else:
        urls = environment["REQUESTS"].split()
        arguments = ["get", "--http3-only", "--fail", "-O",
                     "--cacert", environment["CERTS"] + "/ca.pem"]
        port = urlsplit(urls[0]).port
        for pair in environment["RESOLVE"].split():
            host, address = pair.split("=")
            arguments += ["--resolve", f"{host}:{port}:{address}"]
        arguments += urls
        os.chdir(environment["DOWNLOADS"])
    os.execv(squall, [squall, *arguments])


sys.exit(main())
