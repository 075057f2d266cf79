"""Certificates that a server may show: trusted ones, and ones that every client must refuse."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpuops.clock import machine_time
from gpuops.sim.wire.certificates import Certificates

NOW = machine_time()
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Shown:
    """One certificate of a server, ready to be shown."""

    made: Certificates
    sha256: str

    @property
    def context(self) -> ssl.SSLContext:
        return self.made.server_context()


def make(directory: Path) -> dict[str, Shown]:
    """`good` and `renewed` are of the same authority, the only one in their `ca_file`; each other is bad in one way."""
    authority = ec.generate_private_key(ec.SECP256R1())
    of_ours = _certificate("gpuops test CA", authority.public_key(), "gpuops test CA", authority, ca=True)
    (directory / "ca.pem").write_bytes(of_ours.public_bytes(serialization.Encoding.PEM))

    def show_certificate(
        name: str, *, address: str = "127.0.0.1", end: datetime = NOW + DAY, alone: bool = False
    ) -> Shown:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer, signer = ("vcenter.test", key) if alone else ("gpuops test CA", authority)
        leaf = _certificate("vcenter.test", key.public_key(), issuer, signer, end=end, address=address)
        chain, secret = directory / f"{name}.pem", directory / f"{name}.key"
        chain.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        certificates = Certificates(directory / "ca.pem", chain, secret)
        return Shown(certificates, hashlib.sha256(leaf.public_bytes(serialization.Encoding.DER)).hexdigest())

    return {
        "good": show_certificate("good"),
        "renewed": show_certificate("renewed"),
        "self-signed": show_certificate("self-signed", alone=True),
        "expired": show_certificate("expired", end=NOW - DAY),
        "wrong name": show_certificate("wrong-name", address="127.0.0.9"),
    }


def _certificate(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    *,
    ca: bool = False,
    end: datetime = NOW + DAY,
    address: str = "127.0.0.1",
) -> x509.Certificate:
    def name_of(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    return (
        x509.CertificateBuilder()
        .subject_name(name_of(subject))
        .issuer_name(name_of(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 3 * DAY)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .sign(signer, hashes.SHA256())
    )
