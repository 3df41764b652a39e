"""libcurl as a client under the contract of the QUIC interop runner: the case `http3`.

The environment is that of squall's own endpoint (`interop/src/bin/endpoint`).
"""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pycurl

UNSUPPORTED = 127
# CURL_HTTP_VERSION_3ONLY: no other version is tried.
HTTP_3_ONLY = 31


def transfer(multi, url, file):
    """Adds a download."""
    environment, parts = os.environ, urlsplit(url)
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, url)
    curl.setopt(pycurl.HTTP_VERSION, HTTP_3_ONLY)
    # Use one connection: wait for it rather than open another.
    curl.setopt(pycurl.PIPEWAIT, 1)
    curl.setopt(pycurl.FAILONERROR, 1)
    curl.setopt(pycurl.CAINFO, environment.get("CERTS", "/certs") + "/ca.pem")
    fixed = [pair.split("=") for pair in environment.get("RESOLVE", "").split()]
    curl.setopt(pycurl.RESOLVE, [f"{host}:{parts.port}:{address}" for host, address in fixed])
    curl.setopt(pycurl.WRITEDATA, file)
    multi.add_handle(curl)
    return curl


def main():
    environment = os.environ
    if environment.get("ROLE") != "client":
        print("curl is a client", file=sys.stderr)
        return UNSUPPORTED
    if environment.get("TESTCASE") != "http3":
        print("curl speaks HTTP/3 only", file=sys.stderr)
        return UNSUPPORTED
    folder = Path(environment.get("DOWNLOADS", "/downloads"))
    multi, files, under_way = pycurl.CurlMulti(), [], []
    for url in environment["REQUESTS"].split():
        files.append(open(folder / urlsplit(url).path[1:], "wb"))
        under_way.append(transfer(multi, url, files[-1]))
    running = len(under_way)
    while running:
        _, running = multi.perform()
        multi.select(0.1)
    _, _, failed = multi.info_read()
    for file in files:
        file.close()
    for _, code, text in failed:
        print(f"libcurl's error {code}: {text}", file=sys.stderr)
    return int(bool(failed))


sys.exit(main())
