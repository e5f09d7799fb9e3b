"""An MCP server (`program.py`) for tests, a certificate for one, and a clock that the test sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.missing import require

PROGRAM = str(Path(__file__).with_name("program.py"))


class ManualClock:
    """A clock that stands still until the test changes `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return self.now


@contextmanager
def web_server(transport: str, *options: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Runs the test server over HTTP. Yields its port and its process."""
    require("mcp")
    process = subprocess.Popen(
        [sys.executable, PROGRAM, transport, *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def certificate(folder: Path, name: str) -> str:
    """Writes a key with a self-signed certificate for a host name. Returns the file's path."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    file = folder / "certificate.pem"
    file.write_bytes(pem + signed.public_bytes(serialization.Encoding.PEM))
    return str(file)
