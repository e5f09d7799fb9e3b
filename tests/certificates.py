"""Certificates for servers with TLS. Imported where a test needs one: only some tests have the package."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


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


def signed_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Writes the certificate of a private authority, and that of a host which it has signed, with its key. Returns the
    files."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer, subject = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in ("authority of tests", name)
    )
    now = datetime.now(UTC)

    def make_certificate(whose: x509.Name, of: ec.EllipticCurvePrivateKey, *own: x509.ExtensionType) -> bytes:
        identifiers = (  # since Python 3.13 a certificate without them is refused
            x509.SubjectKeyIdentifier.from_public_key(of.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
        )
        builder = x509.CertificateBuilder(issuer, whose, of.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        for extension in (*own, *identifiers):
            is_critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, critical=is_critical)
        pem: bytes = builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return pem

    authority, host = folder / "authority.pem", folder / "host.pem"
    usages = dict.fromkeys(inspect.signature(x509.KeyUsage).parameters, False) | {"key_cert_sign": True}
    may_sign = x509.BasicConstraints(ca=True, path_length=0), x509.KeyUsage(**usages)
    authority.write_bytes(make_certificate(issuer, authority_key, *may_sign))
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    host.write_bytes(pem + make_certificate(subject, key, names))
    return authority, host
