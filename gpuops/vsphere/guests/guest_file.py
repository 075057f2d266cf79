"""Reads and writes a file of a guest through VMware Tools: InitiateFileTransferFromGuest and
InitiateFileTransferToGuest return a URL for one request, GET or PUT.

The URL leads to the ESXi host, whose certificate must be the one that vCenter has for the host (vSphere API reference,
GuestFileManager). `*` in place of a host name means this vCenter (from memory, govmomi does so).
"""

from __future__ import annotations

import hashlib
import secrets
import ssl
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gpuops import clock
from gpuops.errors import GpuopsError, Refused
from gpuops.model.vcenter.target import Secret, Target
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.exchange import HttpReply, exchange

if TYPE_CHECKING:
    from gpuops.vsphere.connection import Connection

MOST_BYTES: Final = 1 << 20
"""A longer file is not read at all."""
TRANSFER_S: Final = 60.0


class HostUnreached(Refused):
    """The VM's host, from which the file must be fetched, does not answer; it will not for its other VMs either."""


def read_guest_file(session: Connection, vm: str, name: str, path: str) -> bytes:
    """Return the content of a file in the guest. `vm` is the managed object id, `name` the name in errors.

    Raises Refused for a file that is too long or cannot be fetched; the error of vCenter's fault; NotConnected if
    vCenter cannot be reached.
    """
    target = session.vm(vm)
    transfer = session.guests.read(session.guests.files.InitiateFileTransferFromGuest, vm, name, path)
    with session.decoding("InitiateFileTransferFromGuest"):
        url, size = str(transfer.url), int(transfer.size)
    if size > MOST_BYTES:
        raise Refused(f"the file is larger than {MOST_BYTES >> 20} MiB, so it was not read")
    return _transfer(session, target, url, "GET").body


def put_guest_file(session: Connection, vm: str, name: str, path: str, content: Secret) -> None:
    """Write a file of the guest, which its user may read and write, and others may read. Its directory must exist.

    Raises as `read_guest_file`. The content is sent to the ESXi host and is in no log of vCenter.
    """
    from pyVmomi import vim

    attributes = vim.vm.guest.FileManager.PosixFileAttributes(permissions=0o644)
    body, op_id = content.reveal().encode(), f"gpuops-put-{secrets.token_hex(8)}"
    upload = session.guests.files.InitiateFileTransferToGuest
    url = session.guests.change(upload, vm, name, path, attributes, len(body), True, op_id=op_id)
    _transfer(session, session.vm(vm), str(url), "PUT", body)


def _transfer(session: Connection, vm: Any, url: str, verb: str, body: bytes | None = None) -> HttpReply:
    """Send the one request that vCenter made this URL for, and return the reply. Raises Refused if it fails."""
    try:
        transfer_target, path_of_url = _locate(session, url, vm)
        host_connection = network.open_connection(transfer_target, network.tls_context(transfer_target))
    except ValueError as error:
        raise Refused(f"vCenter returned no usable URL for it ({error})") from error
    try:
        with closing(host_connection):
            until = clock.passed_s() + TRANSFER_S
            reply = exchange(host_connection, verb, path_of_url, until=until, body=body, largest=MOST_BYTES)
    except (*network.LOST_ERRORS, network.UnreadableReply) as error:
        connection_lost = network.connection_error(transfer_target, error)
        raise HostUnreached(connection_lost.message, hint="let this machine reach the ESXi hosts' port 443") from error
    if reply.status != 200:
        raise Refused(f"{transfer_target.address} answers {reply.status} to the request for the file")
    return reply


def guest_file_if_there(session: Connection, vm: str, name: str, path: str) -> bytes | None:
    """Return the content of a file in the guest; None if it does not exist (vSphere API reference, FileNotFound)."""
    from pyVmomi import vim

    try:
        return read_guest_file(session, vm, name, path)
    except GpuopsError as error:
        if isinstance(error.__cause__, vim.fault.FileNotFound):
            return None
        raise


def _locate(session: Connection, url: str, vm: Any) -> tuple[Target, str]:
    """Return the server of the URL, with the certificate it must present, and the path with the query.

    Raises ValueError for a URL that cannot be used.
    """
    vcenter, parts = session.target, urlsplit(url)
    if parts.scheme != "https" and vcenter.tls:
        raise ValueError("its URL is not https")
    path = f"{parts.path}?{parts.query}"
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError("its URL is not valid")
    port = parts.port
    if parts.hostname == "*":  # the client fills in the address of vCenter
        return replace(vcenter, port=port or vcenter.port), path
    if not parts.hostname:
        raise ValueError("its URL names no host")
    # an ESXi host gets no password of gpuops, and must present the certificate that vCenter has of it
    pin = _pin(session, vm) if vcenter.tls and vcenter.verify else None
    host_target = replace(vcenter, host=parts.hostname, port=port or 443, username="", password=Secret(""), guest=None)
    return replace(host_target, verify=False, pin=pin), path


def _pin(session: Connection, vm: Any) -> str:
    """Return the SHA-256 of the certificate that vCenter has for the VM's host. Raises Refused."""
    host = session.read(lambda: vm.runtime.host)
    read = session.read_properties([host], ["config.certificate"])
    certificate = next(iter(read.values()), {}).get("config.certificate")
    if not certificate:
        hint = "give this login System.Read on the hosts"
        raise Refused("the certificate of its ESXi host cannot be read, so nothing is fetched from it", hint=hint)
    return _sha256(certificate)


def _sha256(certificate: Any) -> str:
    """Return the SHA-256 of a certificate in PEM, whose bytes vSphere sends as signed numbers. Raises Refused."""
    try:
        text = bytes(signed_byte & 0xFF for signed_byte in certificate).decode("ascii")
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text.strip())).hexdigest()
    except (TypeError, ValueError) as error:
        raise Refused("vCenter returns no valid certificate of its ESXi host") from error
