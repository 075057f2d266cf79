"""Reads the certificate that a server presents, before anything is trusted or sent to it."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass, replace
from typing import Any

from gpuops.model.vcenter.target import Target
from gpuops.vsphere.transport.network import LOST_ERRORS, UNKNOWN_ISSUER, connection_error, open_connection, tls_context


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate that a server presented."""

    pem: str
    sha256: str
    """64 hexadecimal digits in lower case."""
    authority: str
    """Its issuer: `commonName=CA, organizationName=vc.example.com`."""
    trusted: bool
    """Whether an authority that this machine trusts has issued it."""


def presented_certificate(target: Target) -> ServerCertificate:
    """Return the certificate of the server. Nothing but the handshake is sent to it.

    Raises NotTrusted for one that has expired or that is made out to another name, and VcenterUnreachable and
    ProtocolError.
    """
    try:
        try:
            encoded, fields = _handshake(target, tls_context(target))
            trusted = True
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in UNKNOWN_ISSUER:
                raise
            trusted = False
            encoded, _ = _handshake(target, tls_context(replace(target, verify=False)))
            # Trust only this certificate: Python returns fields, and checks name and dates, only of a verified one.
            self_trusting_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self_trusting_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self_trusting_context.load_verify_locations(cadata=encoded)
            _, fields = _handshake(target, self_trusting_context)
    except LOST_ERRORS as error:
        raise connection_error(target, error) from error
    authority = ", ".join(
        f"{field_name}={field_value}" for part in reversed(fields.get("issuer", ())) for field_name, field_value in part
    )
    pem = ssl.DER_cert_to_PEM_cert(encoded)
    return ServerCertificate(pem, hashlib.sha256(encoded).hexdigest(), authority, trusted)


def _handshake(target: Target, context: ssl.SSLContext | None) -> tuple[bytes, dict[str, Any]]:
    """Return the encoded certificate, and its fields if the context verified it. Raises OSError."""
    connection = open_connection(target, context)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket), "a target with TLS"
        fields = connection.sock.getpeercert() or {}
        return connection.sock.getpeercert(binary_form=True) or b"", fields
    finally:
        connection.close()
