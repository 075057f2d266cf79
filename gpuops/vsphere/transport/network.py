"""Opens connections to a vCenter with verified TLS, reads a server's certificate, and translates connection errors.

Every connection gets an SSLContext of its own. A pinned certificate is compared in addition to verification, at the end
of the handshake, so that every user of the context (http.client, urllib3) is subject to it.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from xml.parsers.expat import ExpatError

from gpuops.errors import GpuopsError, NotConnected, NotTrusted, ProtocolError, Trouble, VcenterUnreachable
from gpuops.files.file import read_bytes
from gpuops.model.vcenter.target import Target

SILENCE_S: Final = 30
"""The longest silence on a connection."""

IDLE_CONNECTION_S: Final = 60
"""Connections that were idle for longer are not used again: servers and firewalls drop them silently."""

AWAY: Final = frozenset({"502", "503", "504"})
"""HTTP statuses of the gateway before a vCenter that is overloaded, starting or stopped."""

NOT_USED_HINT: Final = "check that the address is that of a vCenter; gpuops did not use the reply"

_LARGEST_CA: Final = 16 * 1024 * 1024
"""The certificates of all trusted authorities of a system are a quarter of a megabyte."""

LOST_ERRORS: Final = (OSError, http.client.HTTPException)
"""What a broken connection raises; TLS errors are OSErrors."""

BROKEN_OFF: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError, http.client.HTTPException, ExpatError)
"""The errors of a connection that broke off: a read can be repeated at once. Silence and other TLS errors are not among
them: a repeated call would fail as well."""


class UnreadableReply(ValueError):
    """The server sent something that no vCenter sends. The text names it, to continue "HOST sends "."""


class UnusableVcenter(ProtocolError):
    """The server is not a vCenter that gpuops can use; to try again later does not help."""

    trouble = Trouble.DENIED


class EndlessReply(TimeoutError):
    """The server answers, but its answer did not end within `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the reply did not end within {limit_s:.0f} s")
        self.limit_s = limit_s


class PinMismatch(ssl.SSLError):
    """The server's certificate is not the pinned one; `fingerprint` is its SHA-256."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__(f"certificate {fingerprint} is not the pinned one")
        self.fingerprint = fingerprint


UNREADABLE_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    ExpatError,
    LookupError,
    MemoryError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
"""The exceptions that code for decoding raises for a reply that no vCenter sends. The connection's own errors, faults
and errors of gpuops are not among them."""

# OpenSSL's X509_V_ERR_* codes (x509_vfy.h) that have an error message of their own
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_WRONG_NAME: Final = frozenset({62, 64})
UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})


class _PinnedSocket(ssl.SSLSocket):
    """A TLS socket that accepts only a server with the pinned certificate."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        pin = self.context.pin if isinstance(self.context, _PinnedContext) else ""
        certificate = self.getpeercert(binary_form=True) or b""
        fingerprint = hashlib.sha256(certificate).hexdigest()
        if not hmac.compare_digest(fingerprint, pin):
            raise PinMismatch(fingerprint)


class _PinnedContext(ssl.SSLContext):
    """A context whose connections all compare the pin."""

    pin = ""
    sslsocket_class = _PinnedSocket


def tls_context(target: Target) -> ssl.SSLContext | None:
    """Return a new context for this target, which verifies unless the target has `verify=False`; None without TLS.

    Raises NotTrusted if a CA file cannot be read, or if the target has a pin and is reached without TLS.
    """
    if not target.tls:
        if target.pin is not None:
            raise NotTrusted(
                f"{target.address} is reached over http, so its certificate cannot be pinned",
                hint="give the address as https://HOST, or remove --thumbprint",
            )
        return None
    if target.pin is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.pin = target.pin
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not target.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if target.pin is not None:  # let a CA file contain the pinned certificate itself; no other certificate is accepted
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not target.ca_files:
        context.load_default_certs()
    for ca_file in target.ca_files:
        name, hint = f"CA file {ca_file}", "give a file with PEM certificates: --ca-file FILE"
        text = read_bytes(Path(ca_file), largest=_LARGEST_CA, error=NotTrusted, name=name, hint=hint)
        try:
            context.load_verify_locations(cadata=text.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise NotTrusted(f"{name} contains no PEM certificate", hint=hint) from error
    return context


class _OnePacketConnection(http.client.HTTPConnection):
    """Sends the head of a request together with its body, which saves a packet."""

    _body = b""

    def endheaders(self, message_body: Any = None, *, encode_chunked: bool = False) -> None:
        if isinstance(message_body, bytes):
            self._body, message_body = message_body, None
        super().endheaders(message_body, encode_chunked=encode_chunked)

    def send(self, message: Any) -> None:
        body, self._body = self._body, b""  # cleared first: opening the connection may call send, too
        super().send(message + body if body else message)


class _OnePacketTlsConnection(_OnePacketConnection, http.client.HTTPSConnection):
    """Sends the head of a request together with its body, over TLS."""


def open_connection(target: Target, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    """Return a connection to the target, through its proxy if it has one. It is not opened yet."""
    host, port = proxy_of(target) or (target.host, target.port)
    connection: http.client.HTTPConnection
    if context is None:
        connection = _OnePacketConnection(host, port, timeout=SILENCE_S)
    else:
        connection = _OnePacketTlsConnection(host, port, timeout=SILENCE_S, context=context)
    if target.proxy is not None:
        connection.set_tunnel(target.host, target.port)
    return connection


def proxy_of(target: Target) -> tuple[str, int] | None:
    """Return host and port of the target's HTTP proxy; the default port is 80."""
    if target.proxy is None:
        return None
    host, _, port = target.proxy.rpartition(":")
    return (host, int(port)) if host and port.isdigit() else (target.proxy, 80)


def connection_error(target: Target, error: BaseException) -> GpuopsError:
    """Return the error that says why the connection failed."""
    match error:
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return VcenterUnreachable(
                f"{target.address} closed the connection", hint="check the network, then run the command again"
            )
        case ssl.SSLError():
            return _tls_error(target, error)
        case OSError():
            return _unreachable_error(target, error)
        case UnreadableReply():
            return ProtocolError(f"{target.address} sends {error}", hint=NOT_USED_HINT)
        case http.client.HTTPException() if str(error)[:3] in AWAY:  # the text begins with the HTTP status
            return VcenterUnreachable(
                f"{target.address} is overloaded or starting: {error}", hint="run the command again in some minutes"
            )
        case _:
            return ProtocolError(
                f"{target.address} does not answer like a vCenter: {type(error).__name__}", hint="check the address"
            )


@contextmanager
def decoding(address: str, call_name: str) -> Iterator[None]:
    """Raise ProtocolError if the block, which decodes a reply to the call, raises one of `UNREADABLE_ERRORS`.

    Only code that decodes belongs into the block: other bugs of gpuops must stay internal errors.
    """
    try:
        yield
    except UNREADABLE_ERRORS as error:
        sent = f"{error}" if isinstance(error, UnreadableReply) else f"an unreadable reply ({type(error).__name__})"
        raise ProtocolError(f"{address} sends {sent} in reply to {call_name}", hint=NOT_USED_HINT) from error


def _unreachable_error(target: Target, error: OSError) -> VcenterUnreachable:
    """Return the error for a name without address, a reply that takes too long, or a connection that fails."""
    match error:
        case socket.gaierror() if (proxy := proxy_of(target)) is not None:
            return VcenterUnreachable(
                f"DNS has no address for the proxy {proxy[0]}: {error.strerror}", hint="check --proxy and DNS"
            )
        case socket.gaierror():
            unknown_name = VcenterUnreachable(
                f"DNS has no address for {target.host}: {error.strerror}", hint="check the name and DNS"
            )
            if error.errno == socket.EAI_NONAME:  # DNS answers, and knows no such name: a typing error, not an outage
                unknown_name.trouble = Trouble.DENIED
            return unknown_name
        case EndlessReply():
            return VcenterUnreachable(
                f"{target.address} answers, but its reply did not end within {error.limit_s:.0f} s",
                hint="check that the address is a vCenter and that it is not overloaded, then run the command again",
            )
        case TimeoutError():
            return VcenterUnreachable(
                f"{target.address} did not answer within {SILENCE_S} s",
                hint="check the network, then run the command again",
            )
        case _:
            pass
    reason = error.strerror or str(error) or type(error).__name__
    route, hint = "", "check the address and port"
    if target.proxy is not None:
        route, hint = f" through the proxy {target.proxy}", "check the proxy, then the address and port"
    return VcenterUnreachable(f"{target.address} is not reachable{route}: {reason}", hint=hint)


def _tls_error(target: Target, error: ssl.SSLError) -> NotConnected:
    """Return the error for a failed handshake: NotTrusted for a certificate, otherwise ProtocolError."""
    certificate = f"the certificate of {target.address}"
    match error:
        case PinMismatch():
            return NotTrusted(
                f"{certificate} is not the pinned one: its SHA-256 is {error.fingerprint}",
                hint="if vCenter has a new certificate, pin that one with --thumbprint; if not, someone intercepts you",
            )
        case ssl.SSLCertVerificationError(verify_code=code):
            if code == _EXPIRED:
                return NotTrusted(f"{certificate} has expired", hint="renew it in vCenter")
            if code == _NOT_YET_VALID:
                return NotTrusted(f"{certificate} is not valid yet", hint="check this machine's clock")
            if code in _WRONG_NAME:
                return NotTrusted(f"{certificate} is issued for another name", hint="use the name in the certificate")
            if code in UNKNOWN_ISSUER:
                return NotTrusted(
                    f"{certificate} is from an issuer that is not trusted here",
                    hint="give its CA with --ca-file FILE (vCenter offers it at /certs/download.zip)",
                )
            return NotTrusted(
                f"{certificate} is not trusted: {error.verify_message}", hint="give its CA with --ca-file FILE"
            )
        case _:
            return ProtocolError(
                f"{target.address} does not speak TLS as expected: {error.reason or error}",
                hint="check the port; a vCenter without TLS is http://HOST",
            )


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
    """Return the certificate of the server. Only the handshake is sent to it.

    Raises NotTrusted for one that has expired or that is issued for another name, and VcenterUnreachable and
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
