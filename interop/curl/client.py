"""libcurl as an HTTP/3 client controlled by a test.

    client.py PORT ROOTS

HTTP/3 only, on one connection for all requests. Commands arrive on standard input, one per line:

    get PATH
    post PATH BYTES           a body that looks random and is the same in every run

Each is answered on standard output:

    sent BYTES SHA256                       the body of a post
    answer STATUS VERSION CONNECTIONS BYTES SHA256
                                            VERSION is 3; CONNECTIONS were opened for this request
    failed CODE BYTES TEXT                  libcurl's error code, and the bytes that came before it

At the end of the input the program ends, so it never outlives the test.
"""

import hashlib
import io
import sys

import pycurl

# CURL_HTTP_VERSION_3ONLY: no other version is tried.
HTTP_3_ONLY = 31
PATIENCE_S = 30


def tell(*words):
    print(*words, flush=True)


def ask(curl, port, method, path, length):
    digest, received = hashlib.sha256(), 0

    def take(data):
        nonlocal received
        digest.update(data)
        received += len(data)

    curl.setopt(pycurl.URL, f"https://localhost:{port}{path}")
    curl.setopt(pycurl.WRITEFUNCTION, take)
    if method == "post":
        body = hashlib.shake_128(path.encode()).digest(length)
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.POSTFIELDSIZE, length)
        curl.setopt(pycurl.READFUNCTION, io.BytesIO(body).read)
        tell("sent", length, hashlib.sha256(body).hexdigest())
    else:
        curl.setopt(pycurl.HTTPGET, 1)
    try:
        curl.perform()
    except pycurl.error as error:
        code, text = error.args
        tell("failed", code, received, text)
        return
    version = {30: 3}.get(curl.getinfo(pycurl.INFO_HTTP_VERSION), "other")
    status = curl.getinfo(pycurl.RESPONSE_CODE)
    opened = curl.getinfo(pycurl.NUM_CONNECTS)
    tell("answer", status, version, opened, received, digest.hexdigest())


def main():
    port, roots = sys.argv[1:]
    curl = pycurl.Curl()
    curl.setopt(pycurl.HTTP_VERSION, HTTP_3_ONLY)
    curl.setopt(pycurl.CAINFO, roots)
    curl.setopt(pycurl.RESOLVE, [f"localhost:{port}:127.0.0.1"])
    curl.setopt(pycurl.TIMEOUT, PATIENCE_S)
    # Send bodies at once, without asking by `Expect: 100-continue`.
    curl.setopt(pycurl.HTTPHEADER, ["Expect:"])
    for line in sys.stdin:
        match line.split():
            case ["get", path]:
                ask(curl, port, "get", path, 0)
            case ["post", path, length]:
                ask(curl, port, "post", path, int(length))
            case words:
                sys.exit(f"client.py: no such command: {words}")


main()
