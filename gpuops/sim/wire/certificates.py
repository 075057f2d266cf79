"""Makes a certificate authority and a server certificate for one run of the server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuops.clock import machine_time

HOST_NAMES: Final = ("localhost", "vcenter.test")
ADDRESSES: Final = ("127.0.0.1", "::1")
VALIDITY: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in a private directory: the authority that clients trust, the server's certificate chain, and its key."""

    ca_file: Path
    chain_file: Path
    key_file: Path

    def server_context(self) -> ssl.SSLContext:
        """The TLS settings of the server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.chain_file, self.key_file)
        return context


def create(directory: Path, *, now: datetime | None = None, validity: timedelta = VALIDITY) -> Certificates:
    """Write a new authority and a server certificate for 127.0.0.1, ::1, localhost and vcenter.test to `directory`.

    `now` and `validity` let a test create an expired certificate. The authority's private key is not stored.
    """
    moment = now or machine_time()
    until = moment + validity
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuops simulated vCenter, ephemeral CA")])
    authority = _authority_certificate(authority_name, authority_key, moment, until)
    server = _server_certificate(authority, authority_key, server_key, moment, until)
    certificates = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    certificates.ca_file.write_bytes(_pem(authority))
    certificates.chain_file.write_bytes(_pem(server) + _pem(authority))
    certificates.key_file.touch(mode=0o600)
    certificates.key_file.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificates


def _authority_certificate(
    name: x509.Name, key: ec.EllipticCurvePrivateKey, moment: datetime, until: datetime
) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(name, name, key.public_key(), moment, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    moment: datetime,
    until: datetime,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vcenter.test")])
    names = [x509.DNSName(name) for name in HOST_NAMES]
    addresses = [x509.IPAddress(ip_address(address)) for address in ADDRESSES]
    return (
        _builder(subject, authority.subject, key.public_key(), moment, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, moment: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - timedelta(hours=1))  # for clients whose clock is behind
        .not_valid_after(until)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
