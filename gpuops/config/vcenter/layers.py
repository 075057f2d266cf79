"""What the options of a command and the variables GPUOPS_*, VMWARE_* (Ansible) and GOVC_* (govc) say of a connection.

The variables of other tools speak of the vCenter they name. A family whose own address is not the one in use lends
nothing: `--vcenter https://other` must not send GOVC_PASSWORD there, nor skip its certificate for GOVC_INSECURE.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpuops.config.vcenter.address import Address
from gpuops.errors import TargetError, UsageError
from gpuops.model.vcenter.login import BulkReader
from gpuops.model.vcenter.target import Secret

_TRUE: Final = frozenset({"1", "true", "yes", "on", "t", "y"})
_FALSE: Final = frozenset({"0", "false", "no", "off", "f", "n"})


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source says; None = nothing."""

    origin: str
    vcenter: str | None = None
    """As it was written: a target's name, an address, `sim:SCENARIO`; other tools name an address only."""
    address: Address | None = None
    """Read from `vcenter` already, in the families of other tools."""
    username: str | None = None
    password: Secret | None = None
    password_file: Path | None = None
    verify: bool | None = None
    verify_origin: str = ""
    """The flag or variable that says it."""
    ca_files: tuple[Path, ...] | None = None
    thumbprint: str | None = None
    """As it was written."""
    thumbprint_origin: str = ""
    proxy: str | None = None
    journal_url: str | None = field(default=None, repr=False)
    reader: BulkReader | None = None

    def about(self, address: Address) -> Layer:
        """This layer for a connection to that address: empty when it speaks of another vCenter."""
        return self if self.address is None or self.address == address else Layer(self.origin)


@dataclass(frozen=True, slots=True)
class Flags:
    """What the options of a command, or the arguments of an Ansible task, say of the connection."""

    vcenter: str | None = None
    username: str | None = None
    password_file: Path | None = None
    password: Secret | None = None
    """Read from stdin (--password-stdin); there is no option that holds a password."""
    ca_file: Path | None = None
    verify: bool | None = None
    """Whether the certificate is verified; None = it does not say."""
    verify_origin: str = "--insecure"
    """The option or argument that says it."""
    proxy: str | None = None
    journal_url: str | None = field(default=None, repr=False)
    thumbprint: str | None = None
    reader: BulkReader | None = None


def flag_layer(flags: Flags) -> Layer:
    return Layer(
        "the command line",
        vcenter=flags.vcenter,
        username=flags.username,
        password=flags.password,
        password_file=flags.password_file,
        verify=flags.verify,
        verify_origin=flags.verify_origin,
        ca_files=(flags.ca_file,) if flags.ca_file else None,
        thumbprint=flags.thumbprint,
        thumbprint_origin="--thumbprint",
        proxy=flags.proxy,
        journal_url=flags.journal_url,
        reader=flags.reader,
    )


def gpuops_layer(environ: Mapping[str, str]) -> Layer:
    insecure = _boolean(environ, "GPUOPS_INSECURE")
    return Layer(
        "GPUOPS_*",
        vcenter=environ.get("GPUOPS_VCENTER") or None,
        username=environ.get("GPUOPS_USERNAME") or None,
        password=_secret(environ, "GPUOPS_PASSWORD"),
        password_file=_file(environ.get("GPUOPS_PASSWORD_FILE")),
        verify=None if insecure is None else not insecure,
        verify_origin="GPUOPS_INSECURE",
        ca_files=_files(environ.get("GPUOPS_CA_FILE")),
        thumbprint=environ.get("GPUOPS_THUMBPRINT") or None,
        thumbprint_origin="GPUOPS_THUMBPRINT",
        proxy=environ.get("GPUOPS_PROXY") or None,
        journal_url=environ.get("GPUOPS_JOURNAL_URL") or None,
        reader=_reader(environ.get("GPUOPS_READER")),
    )


def vmware_layer(environ: Mapping[str, str]) -> Layer:
    """The variables of the Ansible collections for VMware (`vmware.vmware.base_options`)."""
    host, port = environ.get("VMWARE_HOST") or None, environ.get("VMWARE_PORT") or None
    proxy_host, proxy_port = environ.get("VMWARE_PROXY_HOST"), environ.get("VMWARE_PROXY_PORT")
    return Layer(
        "VMWARE_*",
        vcenter=host,
        address=_address("VMWARE_HOST", host, _port("VMWARE_PORT", port)),
        username=environ.get("VMWARE_USER") or None,
        password=_secret(environ, "VMWARE_PASSWORD"),
        verify=_boolean(environ, "VMWARE_VALIDATE_CERTS"),
        verify_origin="VMWARE_VALIDATE_CERTS",
        proxy=f"{proxy_host}:{proxy_port or 8080}" if proxy_host else None,
    )


def govc_layer(environ: Mapping[str, str]) -> Layer:
    """The variables of govc; GOVC_URL may hold the user and the password."""
    url = environ.get("GOVC_URL") or None
    address = _address("GOVC_URL", url, None)
    insecure = _boolean(environ, "GOVC_INSECURE")
    return Layer(
        "GOVC_*",
        vcenter=url,
        address=address,
        username=environ.get("GOVC_USERNAME") or (address.username if address else None),
        password=_secret(environ, "GOVC_PASSWORD") or (address.password if address else None),
        verify=None if insecure is None else not insecure,
        verify_origin="GOVC_INSECURE",
        ca_files=_files(environ.get("GOVC_TLS_CA_CERTS")),
    )


def merged(layers: tuple[Layer, ...]) -> Layer:
    """One layer: for each setting the first that says anything. A password and its file count as one setting."""
    result = Layer("all sources")
    for layer in layers:
        knows_password = result.password is not None or result.password_file is not None
        knows_verify = result.verify is not None
        result = replace(
            result,
            username=result.username if result.username is not None else layer.username,
            password=result.password if knows_password else layer.password,
            password_file=result.password_file if knows_password else layer.password_file,
            verify=result.verify if knows_verify else layer.verify,
            verify_origin=layer.verify_origin
            if layer.verify is not None and not knows_verify
            else result.verify_origin,
            ca_files=result.ca_files if result.ca_files is not None else layer.ca_files,
            thumbprint=result.thumbprint if result.thumbprint is not None else layer.thumbprint,
            thumbprint_origin=result.thumbprint_origin if result.thumbprint is not None else layer.thumbprint_origin,
            proxy=result.proxy if result.proxy is not None else layer.proxy,
            journal_url=result.journal_url if result.journal_url is not None else layer.journal_url,
            reader=result.reader if result.reader is not None else layer.reader,
        )
    return result


def _reader(text: str | None) -> BulkReader | None:
    try:
        return BulkReader(text) if text else None
    except ValueError:
        raise UsageError("GPUOPS_READER is not a reader", hint="set it to auto, soap or json") from None


def _secret(environ: Mapping[str, str], variable: str) -> Secret | None:
    text = environ.get(variable)
    return Secret(text) if text else None


def _boolean(environ: Mapping[str, str], variable: str) -> bool | None:
    text = environ.get(variable, "").strip().lower()
    if not text:
        return None
    if text not in _TRUE | _FALSE:
        raise UsageError(f"{variable} is neither true nor false", hint=f"set {variable} to true or false")
    return text in _TRUE


def _port(variable: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"{variable} is not a port number", hint=f"{variable}=443")
    return int(text)


def _address(variable: str, text: str | None, port: int | None) -> Address | None:
    if text is None:
        return None
    try:
        return Address.parse(text, port=port)
    except TargetError as error:
        raise TargetError(f"{variable}: {error.message}", hint=error.hint) from error


def _file(text: str | None) -> Path | None:
    return Path(text) if text else None


def _files(text: str | None) -> tuple[Path, ...] | None:
    """govc's GOVC_TLS_CA_CERTS is a list of files, separated as in PATH."""
    return tuple(Path(part) for part in text.split(os.pathsep) if part) or None if text else None
