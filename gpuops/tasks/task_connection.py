"""Turns the arguments of a task into a connection to vCenter, a site, and a request.

Arguments that a task leaves out come from GPUOPS_*, VMWARE_*, GOVC_* and the configuration file, in this order, as for
the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_type_hints

from gpuops.clock import pause, wall_clock
from gpuops.config.user_paths import config_file, name_missing_user
from gpuops.config.vcenter.destination import SERVED, SIMULATED, Destination, Simulated
from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.sources import NamedTargets, read_configuration, resolve
from gpuops.distribution import refuse_other_project
from gpuops.errors import TargetError, UsageError
from gpuops.files import private_file
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.target import Secret

if TYPE_CHECKING:
    from gpuops.api import HostShell, Site
    from gpuops.model.nights.rotation_policy import Policy

_LAST_PORT: Final = 65535


def prepare_process() -> None:
    """Prepare the process of a module or of the inventory plugin; call this first.

    Forbids core files, so that a crash does not write a password to disk. Sets a home directory and a user name if the
    user has none, as the command line does.
    """
    private_file.forbid_core_files()
    name_missing_user()


@dataclass(frozen=True, slots=True)
class ConnectionArguments:
    """The connection's arguments of a task; None = the task leaves it out. The names are those of `vmware.vmware`."""

    hostname: str | None = None
    """A host name or address, a target of the configuration file, `sim:SCENARIO` or `sim@READY-FILE`."""
    port: int | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    validate_certs: bool | None = None
    ca_file: str | None = None
    proxy_host: str | None = None
    proxy_port: int | None = None
    journal_url: str | None = field(default=None, repr=False)
    reader: str | None = None
    state_dir: str | None = None


@dataclass(frozen=True, slots=True)
class HostShellArguments:
    """Whether and how gpuops runs commands on hosts: `--host-shell` and its options; None = the task leaves it out."""

    host_shell: str | None = None
    ssh_user: str | None = None
    ssh_known_hosts: str | None = None
    ssh_key: str | None = None
    ssh_port: int | None = None

    def shell(self) -> HostShell | None:
        """Return the shell on hosts; None = gpuops runs nothing on hosts. Raises UsageError for an invalid option."""
        if self.host_shell is None or self.host_shell == "none":
            return None
        from gpuops.hostshell.nvidia_smi import NvidiaSmi
        from gpuops.hostshell.ssh import Ssh

        if self.host_shell != "ssh":
            raise UsageError("host_shell is not a known host shell", hint="set it to none or ssh")
        if self.ssh_port is not None and not 0 < self.ssh_port <= _LAST_PORT:
            raise UsageError(
                f"ssh_port {self.ssh_port} is not a port", hint=f"set it to 1 to {_LAST_PORT}; default: 22"
            )
        files = {"known_hosts": _path(self.ssh_known_hosts), "key": _path(self.ssh_key)}
        options: dict[str, Any] = {"username": self.ssh_user, "port": self.ssh_port, **files}
        return NvidiaSmi(Ssh(**{name: option for name, option in options.items() if option is not None}))


NO_SHELL: Final = HostShellArguments()


def destination_of(connection: ConnectionArguments, environ: Mapping[str, str] = os.environ) -> Destination | Simulated:
    """Return which vCenter the arguments name and how to connect to it. Raises TargetError, UsageError."""
    refuse_other_project()
    if connection.password is not None and connection.password_file is not None:
        raise UsageError("password and password_file exclude each other", hint="give one of them")
    # as an environment variable: a URL with a password is refused on a command line, but Ansible does not log this one
    if connection.journal_url is not None:
        environ = {**environ, "GPUOPS_JOURNAL_URL": connection.journal_url}
    configuration = read_configuration(config_file(environ))
    flags = Flags(
        vcenter=_vcenter(connection, configuration),
        username=connection.username,
        password=Secret(connection.password) if connection.password is not None else None,
        password_file=_path(connection.password_file),
        ca_file=_path(connection.ca_file),
        verify=connection.validate_certs,
        verify_origin="validate_certs",
        reader=_reader(connection.reader),
        proxy=f"{connection.proxy_host}:{connection.proxy_port or 8080}" if connection.proxy_host else None,
    )
    return resolve(flags, environ, configuration)


def open_site(
    connection: ConnectionArguments,
    *,
    require_verified: bool = False,
    is_return: bool | None = False,
    policy: Policy | None = None,
    run: str = "",
    shell: HostShellArguments = NO_SHELL,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Site, list[str]]:
    """Return a logged-in site, which the caller must close, and the list of warnings, to which the site appends more.

    `require_verified`: refuse a connection whose certificate is not verified (for rotations), unless the task itself
    has `validate_certs: false`. `returning`: the task is a return, which waits for a vCenter that does not answer, as
    long as the desktops of `policy` have time; None = only the journal shows whether it is one. `run`: the command of a
    task that changes something, for notices. `shell`: how to run commands on hosts; failures there are warnings. Raises
    TargetError, NotConnected, Refused, and UsageError for an invalid shell.
    """
    from gpuops.api import connect_checked
    from gpuops.execute.site.vcenter_wait import VcenterWait

    warnings: list[str] = []
    host_shell = shell.shell()
    site = connect_checked(
        destination_of(connection, environ),
        warnings.append,
        caller=["ansible"],
        require_verified=require_verified,
        unverified_accepted=connection.validate_certs is False,
        environ=environ,
        state_dir=Path(connection.state_dir).expanduser() if connection.state_dir else None,
        vcenter_wait=VcenterWait(policy, wall_clock, pause, warnings.append) if is_return else None,
        is_return=is_return,
        run=run,
    )
    if host_shell is not None:
        site.shell, site.say = host_shell, warnings.append
    return site, warnings


def _vcenter(connection: ConnectionArguments, configuration: NamedTargets) -> str | None:
    """Return the vCenter as the command line names it (`--vcenter`); None if the task names none.

    A word that is not a target of the configuration file is a host name, as in other Ansible modules: add `https://`.
    """
    name = connection.hostname
    if not name:
        if connection.port is not None:
            raise TargetError("port is set, but hostname is not", hint="set hostname, or VMWARE_HOST and VMWARE_PORT")
        return None
    if name.startswith((SIMULATED, SERVED)) or name in configuration.targets:
        return name
    is_bare_ipv6 = name.count(":") > 1 and "[" not in name
    address = name if "://" in name else f"https://[{name}]" if is_bare_ipv6 else f"https://{name}"
    scheme, _, after_scheme = address.partition("://")
    host, slash, path = after_scheme.partition("/")
    # a port in the address counts more than `port`; the colons of an IPv6 address in brackets are no port
    if connection.port is None or ":" in host.rpartition("]")[2]:
        return address
    return f"{scheme}://{host}:{connection.port}{slash}{path}"


def _reader(name: str | None) -> BulkReader | None:
    try:
        return BulkReader(name) if name else None
    except ValueError:
        raise UsageError("reader is not a known reader", hint="set it to auto, soap or json") from None


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None


Request = TypeVar("Request")


def request_of(kind: type[Request], options: Mapping[str, Any]) -> Request:
    """Return the request with these options as its fields. None = the task leaves the option out.

    Lists become tuples, and text becomes the enum of the field.
    """
    hints = get_type_hints(kind)
    options_given = {name: option for name, option in options.items() if option is not None}
    return kind(**{name: _field_value(hints[name], option) for name, option in options_given.items()})


def vm_of(options: dict[str, Any]) -> str | None:
    """Remove the options that name a VM from `options`, and return the name that gpuops uses, or None."""
    name, moid, uuid = (options.pop(key, None) for key in ("vm", "moid", "uuid"))
    if moid:
        return f"moid:{moid}"
    return f"uuid:{uuid}" if uuid else name


def policy_of(file: str | None) -> Policy | None:
    """Return the rotation policy of a file. Raises PolicyError."""
    from gpuops.config.policy import load_policy

    return load_policy(Path(file).expanduser()) if file else None


def _field_value(hint: Any, option: Any) -> Any:
    if isinstance(option, list):
        return tuple(option)
    # the enum of a field such as `NumaPolicy | None`
    enums = [
        type_in_hint
        for type_in_hint in (hint, *get_args(hint))
        if isinstance(type_in_hint, type) and issubclass(type_in_hint, StrEnum)
    ]
    return enums[0](option) if enums else option
