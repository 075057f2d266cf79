"""Reads the settings of a connection from options and from variables: GPUOPS_*, VMWARE_* (Ansible), GOVC_* (govc).

The variables of another tool are for the vCenter that they name. They are ignored for any other vCenter:
`--vcenter https://other` must not send GOVC_PASSWORD there, nor skip its certificate because of GOVC_INSECURE.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, Generic, TypeVar

from gpuops.config.vcenter.destination import Address
from gpuops.errors import TargetError, UsageError
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.target import Secret

Value = TypeVar("Value", covariant=True)
_TRUE: Final = frozenset({"1", "true", "yes", "on", "t", "y"})
_FALSE: Final = frozenset({"0", "false", "no", "off", "f", "n"})
DEFAULT: Final = "default"
"""The origin of a setting that nothing sets."""


@dataclass(frozen=True, slots=True)
class Sourced(Generic[Value]):
    """A setting with the option, variable or key (`targets.prod.proxy`) that sets it."""

    value: Value = field(repr=False)
    origin: str


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings from one source; None = it does not have the setting."""

    vcenter: Sourced[str] | None = None
    """As it was written: the name of a target, an address, or `sim:SCENARIO`; variables of other tools: an address."""
    address: Address | None = None
    """`vcenter` as an address; only for variables of other tools."""
    username: Sourced[str] | None = None
    password: Sourced[Secret | Path] | None = None
    """The password, or the file with the password."""
    verify: Sourced[bool] | None = None
    ca_files: Sourced[tuple[Path, ...]] | None = None
    thumbprint: Sourced[str] | None = None
    """As it was written."""
    proxy: Sourced[str] | None = None
    journal_url: Sourced[str] | None = None
    reader: Sourced[BulkReader] | None = None

    def about(self, address: Address) -> Layer:
        """Return this layer, or an empty one if it is for another vCenter than the one at this address."""
        return self if self.address is None or self.address == address else Layer()

    @property
    def origins(self) -> dict[str, str]:
        """Return the option, variable or key that sets each setting, by the name of the setting."""
        settings = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        return {name: setting.origin for name, setting in settings.items() if isinstance(setting, Sourced)}


@dataclass(frozen=True, slots=True)
class Flags:
    """The settings of a connection in the options of a command, or in the arguments of an Ansible task."""

    vcenter: str | None = None
    username: str | None = None
    password_file: Path | None = None
    password: Secret | None = None
    """Read from stdin (--password-stdin); there is no option that holds a password."""
    ca_file: Path | None = None
    verify: bool | None = None
    """Whether the certificate is verified; None = not set."""
    verify_origin: str = "--insecure"
    """The option or argument that sets `verify`."""
    proxy: str | None = None
    journal_url: str | None = field(default=None, repr=False)
    thumbprint: str | None = None
    reader: BulkReader | None = None


def flag_layer(flags: Flags) -> Layer:
    """Return the settings in the options of a command."""
    return Layer(
        vcenter=sourced(flags.vcenter, "--vcenter"),
        username=sourced(flags.username, "--username"),
        password=sourced(flags.password, "--password-stdin") or sourced(flags.password_file, "--password-file"),
        verify=sourced(flags.verify, flags.verify_origin),
        ca_files=sourced((flags.ca_file,) if flags.ca_file else None, "--ca-file"),
        thumbprint=sourced(flags.thumbprint, "--thumbprint"),
        proxy=sourced(flags.proxy, "--proxy"),
        journal_url=sourced(flags.journal_url, "--journal-url"),
        reader=sourced(flags.reader, "--reader"),
    )


def gpuops_layer(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the variables GPUOPS_*."""
    return Layer(
        vcenter=_variable(environ, "GPUOPS_VCENTER", str),
        username=_variable(environ, "GPUOPS_USERNAME", str),
        password=_variable(environ, "GPUOPS_PASSWORD", Secret) or _variable(environ, "GPUOPS_PASSWORD_FILE", Path),
        verify=_verify(environ, "GPUOPS_INSECURE", is_verified=False),
        ca_files=_variable(environ, "GPUOPS_CA_FILE", _files),
        thumbprint=_variable(environ, "GPUOPS_THUMBPRINT", str),
        proxy=_variable(environ, "GPUOPS_PROXY", str),
        journal_url=_variable(environ, "GPUOPS_JOURNAL_URL", str),
        reader=_variable(environ, "GPUOPS_READER", _reader),
    )


def vmware_layer(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the variables of Ansible's collections for VMware (`vmware.vmware.base_options`)."""
    proxy_port = environ.get("VMWARE_PROXY_PORT") or 8080
    port = _port("VMWARE_PORT", environ.get("VMWARE_PORT") or None)
    return Layer(
        vcenter=_variable(environ, "VMWARE_HOST", str),
        address=_address("VMWARE_HOST", environ, port),
        username=_variable(environ, "VMWARE_USER", str),
        password=_variable(environ, "VMWARE_PASSWORD", Secret),
        verify=_verify(environ, "VMWARE_VALIDATE_CERTS", is_verified=True),
        proxy=_variable(environ, "VMWARE_PROXY_HOST", lambda host: f"{host}:{proxy_port}"),
    )


def govc_layer(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the variables of govc; GOVC_URL may contain the user and the password."""
    address = _address("GOVC_URL", environ)
    login = login_layer(address, "GOVC_URL") if address is not None else Layer()
    return Layer(
        vcenter=_variable(environ, "GOVC_URL", str),
        address=address,
        username=_variable(environ, "GOVC_USERNAME", str) or login.username,
        password=_variable(environ, "GOVC_PASSWORD", Secret) or login.password,
        verify=_verify(environ, "GOVC_INSECURE", is_verified=False),
        ca_files=_variable(environ, "GOVC_TLS_CA_CERTS", _files),
    )


def login_layer(address: Address, origin: str) -> Layer:
    """Return the user and the password that are written in an address, if any."""
    return Layer(username=sourced(address.username, origin), password=sourced(address.password, origin))


def merged(layers: Iterable[Layer]) -> Layer:
    """Return one layer with each setting from the first layer that has it."""
    names, layers = [setting.name for setting in fields(Layer)], tuple(layers)
    return Layer(**{name: next(filter(None, (getattr(layer, name) for layer in layers)), None) for name in names})


def sourced(value: Value | None, origin: str) -> Sourced[Value] | None:
    """Return the setting with its origin; None = it is not set."""
    return None if value is None else Sourced(value, origin)


def _variable(environ: Mapping[str, str], variable: str, read: Callable[[str], Value | None]) -> Sourced[Value] | None:
    text = environ.get(variable)
    return sourced(read(text), variable) if text else None


def _reader(text: str) -> BulkReader:
    """Return the reader in GPUOPS_READER. Raises UsageError for another word."""
    try:
        return BulkReader(text)
    except ValueError:
        raise UsageError(
            "the value of GPUOPS_READER is not a reader", hint="set GPUOPS_READER to auto, soap or json"
        ) from None


def _verify(environ: Mapping[str, str], variable: str, *, is_verified: bool) -> Sourced[bool] | None:
    """Return whether the certificate is verified. `is_verified` is the meaning of `true` in this variable."""
    text = environ.get(variable, "").strip().lower()
    if text and text not in _TRUE | _FALSE:
        raise UsageError(f"the value of {variable} is neither true nor false", hint=f"set {variable} to true or false")
    return Sourced((text in _TRUE) is is_verified, variable) if text else None


def _port(variable: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"the value of {variable} is not a port", hint=f"set it to a number: {variable}=443")
    return int(text)


def _address(variable: str, environ: Mapping[str, str], port: int | None = None) -> Address | None:
    try:
        return Address.parse(environ[variable], port=port) if environ.get(variable) else None
    except TargetError as error:
        raise TargetError(f"{variable}: {error.message}", hint=error.hint) from error


def _files(text: str) -> tuple[Path, ...] | None:
    """Return the files of a list that is separated as in PATH, or None."""
    return tuple(Path(part) for part in text.split(os.pathsep) if part) or None
