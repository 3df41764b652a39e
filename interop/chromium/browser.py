"""Headless Chromium, controlled by a test.

    browser.py PORT SPKI

PORT is that of a server on localhost, to which the browser speaks HTTP/3 from its first request.
SPKI is the fingerprint of its certificate's key: BASE64(SHA-256), as Chromium's own option wants it.
Commands arrive on standard input, one per line:

    run PATH SCRIPT      opens a page and runs a script in it, which may await; its result is a string

Each is answered on standard output:

    result STRING        what the script returned, as JSON
    failed TEXT          what it threw, or why there is no page

At the end of the input the browser ends, so it never outlives the test. The browser is controlled
by its own protocol over a pipe (--remote-debugging-pipe).
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile


def tell(*words):
    print(*words, flush=True)


class Browser:
    def __init__(self, port, spki, profile):
        to_read, self.to_write = os.pipe()
        self.to_read, to_write = os.pipe()

        def descriptors():
            # The browser reads from 3 and writes to 4. Copy first: these may already be 3 and 4.
            read, write = os.dup(to_read), os.dup(to_write)
            os.dup2(read, 3, inheritable=True)
            os.dup2(write, 4, inheritable=True)

        command = [
            shutil.which("chromium") or "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--autoplay-policy=no-user-gesture-required",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            f"--origin-to-force-quic-on=localhost:{port}",
            f"--ignore-certificate-errors-spki-list={spki}",
            "about:blank",
        ]
        log = open(os.path.join(profile, "log"), "wb")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=False,
            preexec_fn=descriptors,
        )
        os.close(to_read)
        os.close(to_write)
        self.ids = itertools.count(1)
        self.buffer = b""
        self.events = set()

    def call(self, method, session=None, **parameters):
        call = {"id": next(self.ids), "method": method, "params": parameters}
        if session:
            call["sessionId"] = session
        os.write(self.to_write, json.dumps(call).encode() + b"\0")
        while True:
            answer = self.message()
            self.take(answer)
            if answer.get("id") == call["id"]:
                if "error" in answer:
                    raise RuntimeError(answer["error"]["message"])
                return answer["result"]

    def take(self, message):
        if "method" in message:
            self.events.add(message["method"])

    def message(self):
        while b"\0" not in self.buffer:
            more = os.read(self.to_read, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def run(self, url, script):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        session = attached["sessionId"]
        self.call("Page.enable", session)
        page = self.call("Page.navigate", session, url=url)
        if "errorText" in page:
            raise RuntimeError(page["errorText"])
        while "Page.loadEventFired" not in self.events:
            self.take(self.message())
        self.events.clear()
        result = self.call(
            "Runtime.evaluate",
            session,
            expression=f"(async () => {{ {script} }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        details = result.get("exceptionDetails")
        if details is not None:
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        self.call("Target.closeTarget", targetId=target)
        return result["result"].get("value")


def main():
    port, spki = sys.argv[1:]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(port, spki, profile)
        try:
            for line in sys.stdin:
                word, path, script = line.rstrip("\n").split(" ", 2)
                if word != "run":
                    sys.exit(f"browser.py: no such command: {word}")
                try:
                    result = browser.run(f"https://localhost:{port}{path}", script)
                    tell("result", json.dumps(result))
                except RuntimeError as error:
                    tell("failed", " ".join(str(error).split()))
        finally:
            browser.process.terminate()
            browser.process.wait()


main()
