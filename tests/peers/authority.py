"""A certificate authority for one test server, so that the peers verify TLS as they would a real vCenter's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Authority:
    """The files of a CA and of one server certificate for 127.0.0.1 and localhost."""

    ca_file: Path
    certificate: Path
    key: Path

    @classmethod
    def create(cls, directory: Path) -> Authority:
        """A new CA and certificate, valid for a day, written into `directory`."""
        ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        ca_name, server_name = _name("gpuops test CA"), _name("127.0.0.1")
        ca = (
            _builder(ca_name, ca_name, ca_key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(ca_key, hashes.SHA256())
        )
        alternatives = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        server = (
            _builder(server_name, ca_name, server_key)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        made = cls(directory / "ca.pem", directory / "server.pem", directory / "server.key")
        made.ca_file.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
        made.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            server_key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)  # noqa: TID251 - a certificate is valid around the real present
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
