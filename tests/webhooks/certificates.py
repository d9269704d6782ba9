"""Certificates for servers of tests, good ones and bad ones."""

from __future__ import annotations

import ipaddress
import ssl
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = timedelta(days=1)


@dataclass
class Authority:
    """Signs certificates; its own is at `file`, to be trusted."""

    folder: Path
    name: str = "authority"

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _built(self.name, self._key, self.name, self._key, authority=True)
        self.file = self.folder / f"{self.name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(
        self, address: str = "127.0.0.1", *, begins: timedelta = -DAY, ends: timedelta = DAY, self_signed: bool = False
    ) -> ssl.SSLContext:
        """For a server at the address, valid from now + `begins` to now + `ends`."""
        key = ec.generate_private_key(ec.SECP256R1())
        by, signer = ("target", key) if self_signed else (self.name, self._key)
        certificate = _built("target", key, by, signer, address=address, begins=begins, ends=ends)
        file = self.folder / "target.pem"
        plain = serialization.NoEncryption()
        file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def outdated(context: ssl.SSLContext) -> ssl.SSLContext:
    """As it is, but it speaks TLS 1.1 at most."""
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def _built(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    by: str,
    signer: ec.EllipticCurvePrivateKey,
    *,
    address: str = "",
    begins: timedelta = -DAY,
    ends: timedelta = DAY,
    authority: bool = False,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(by))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if address:
        named = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        builder = builder.add_extension(named, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
