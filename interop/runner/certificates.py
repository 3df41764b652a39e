"""Certificates like the runner's: an authority, and a chain of a given length."""

import secrets
import subprocess
from pathlib import Path

NAMES = ("server", "server4", "server6", "server46", "localhost")
DAYS = "10"


def openssl(*arguments):
    command = ["openssl", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make(folder, length=1):
    """Writes `ca.pem`, `cert.pem` and `priv.key`. `length` includes the server's certificate; a
    longer chain also has a large certificate at its end."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    extensions = folder / "extensions.cnf"
    names = list(NAMES)
    if length > 1:
        names += ["".join(secrets.choice("abcdef0123456789") for _ in range(60)) + ".example"
                  for _ in range(80)]
    extensions.write_text(
        "[authority]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n"
        "subjectKeyIdentifier=hash\n"
        "[server]\nbasicConstraints=critical,CA:FALSE\n"
        f"subjectAltName={','.join('DNS:' + name for name in names)}\n"
        "[req]\ndistinguished_name=dn\n[dn]\n"
    )
    issuer, issuer_key = folder / "ca.pem", folder / "ca.key"
    new_key(issuer_key)
    openssl("req", "-x509", "-sha256", "-days", DAYS, "-key", issuer_key, "-out", issuer,
            "-subj", "/O=interop authority/", "-config", extensions, "-extensions", "authority")
    chain = []
    for number in range(1, length + 1):
        is_last = number == length
        key = folder / ("priv.key" if is_last else f"{number}.key")
        request, certificate = folder / f"{number}.csr", folder / f"{number}.pem"
        new_key(key)
        subject = "/O=interop server/" if is_last else f"/O=interop intermediate {number}/"
        openssl("req", "-new", "-key", key, "-out", request, "-subj", subject,
                "-config", extensions)
        openssl("x509", "-req", "-sha256", "-days", DAYS, "-in", request, "-out", certificate,
                "-CA", issuer, "-CAkey", issuer_key, "-set_serial", secrets.randbits(64),
                "-extfile", extensions, "-extensions", "server" if is_last else "authority")
        chain.insert(0, certificate.read_text())
        issuer, issuer_key = certificate, key
    (folder / "cert.pem").write_text("".join(chain))


def new_key(path):
    # PKCS #8: aioquic reads nothing else.
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)
