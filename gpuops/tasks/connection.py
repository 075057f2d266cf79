"""From the arguments of a task to the vCenter, the site and the request.

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
from gpuops.model.vcenter.login import BulkReader
from gpuops.model.vcenter.target import Secret

if TYPE_CHECKING:
    from gpuops.api import HostShell, Site
    from gpuops.model.nights.rotation import Policy

_LAST_PORT: Final = 65535


def prepare_process() -> None:
    """The first thing of every module and of the inventory plugin: no crash writes the password to a disk.

    A user without a home directory or a name gets both, as in the command line.
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
    """Whether hosts themselves are asked, and how: `--host-shell` and its options; None = the task leaves it out."""

    host_shell: str | None = None
    ssh_user: str | None = None
    ssh_known_hosts: str | None = None
    ssh_key: str | None = None
    ssh_port: int | None = None

    def shell(self) -> HostShell | None:
        """Return the way in; None = hosts are not entered. Raises UsageError."""
        if self.host_shell is None or self.host_shell == "none":
            return None
        from gpuops.hostshell.nvidia_smi import NvidiaSmi
        from gpuops.hostshell.ssh import Ssh

        if self.host_shell != "ssh":
            raise UsageError("host_shell is not a known host shell", hint="set it to none or ssh")
        if self.ssh_port is not None and not 0 < self.ssh_port <= _LAST_PORT:
            raise UsageError(f"ssh_port {self.ssh_port} is no port", hint=f"it is 1 to {_LAST_PORT}, 22 by default")
        files = {"known_hosts": _path(self.ssh_known_hosts), "key": _path(self.ssh_key)}
        options: dict[str, Any] = {"username": self.ssh_user, "port": self.ssh_port, **files}
        return NvidiaSmi(Ssh(**{name: option for name, option in options.items() if option is not None}))


NO_SHELL: Final = HostShellArguments()


def reach(connection: ConnectionArguments, environ: Mapping[str, str] = os.environ) -> Destination | Simulated:
    """Return the vCenter meant and the way to it. Raises TargetError, UsageError."""
    refuse_other_project()
    if connection.password is not None and connection.password_file is not None:
        raise UsageError("password and password_file exclude each other", hint="give one of them")
    if connection.journal_url is not None:  # it may hold a password: an argument that is not logged is no command line
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
    guarded: bool = False,
    returning: bool | None = False,
    policy: Policy | None = None,
    run: str = "",
    shell: HostShellArguments = NO_SHELL,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Site, list[str]]:
    """A logged-in site, to be closed, and what to warn of, which may grow. Raises TargetError, NotConnected, Refused.

    `guarded` is a rotation: refused over a connection that is not verified, unless the task itself says
    `validate_certs: false`. `returning`: it waits for a vCenter that is away as long as the policy's desktops need;
    None = only the journal tells whether it returns, and so needs no login to guests.
    `run`: the command of one that changes something, of which notices tell. What a host does not tell `shell` is warned
    of. Raises UsageError too, for a shell that means nothing.
    """
    from gpuops.api import connect_checked
    from gpuops.execute.site.vcenter_wait import VcenterWait

    warnings: list[str] = []
    way_in = shell.shell()
    site = connect_checked(
        reach(connection, environ),
        warnings.append,
        caller=["ansible"],
        guarded=guarded,
        decided=connection.validate_certs is False,
        environ=environ,
        state_dir=Path(connection.state_dir).expanduser() if connection.state_dir else None,
        vcenter_wait=VcenterWait(policy, wall_clock, pause, warnings.append) if returning else None,
        returns=returning,
        run=run,
    )
    if way_in is not None:
        site.shell, site.say = way_in, warnings.append
    return site, warnings


def _vcenter(connection: ConnectionArguments, configuration: NamedTargets) -> str | None:
    """As the command line would name it. A bare word that is no target is a host: Ansible's users write them so."""
    name = connection.hostname
    if not name:
        if connection.port is not None:
            raise TargetError("port is set, but hostname is not", hint="set hostname, or VMWARE_HOST and VMWARE_PORT")
        return None
    if name.startswith((SIMULATED, SERVED)) or name in configuration.targets:
        return name
    address = name if "://" in name else f"https://{f'[{name}]' if name.count(':') > 1 and '[' not in name else name}"
    if connection.port is None or address.rpartition("]")[2].rpartition("//")[2].partition("/")[0].count(":"):
        return address
    scheme, _, after_scheme = address.partition("://")
    host, slash, path = after_scheme.partition("/")
    return f"{scheme}://{host}:{connection.port}{slash}{path}"


def _reader(name: str | None) -> BulkReader | None:
    try:
        return BulkReader(name) if name else None
    except ValueError:
        raise UsageError("reader is not a reader", hint="set it to auto, soap or json") from None


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None


Request = TypeVar("Request")


def request_of(kind: type[Request], options: Mapping[str, Any]) -> Request:
    """Return the request that these options make: text becomes the word of the field's vocabulary. None = left out."""
    hints = get_type_hints(kind)
    options_given = {name: option for name, option in options.items() if option is not None}
    return kind(**{name: _field_value(hints[name], option) for name, option in options_given.items()})


def vm_of(options: dict[str, Any]) -> str | None:
    """Take out the options that name a VM, and return how gpuops names it; None = the task names none."""
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
    words = [
        type_in_hint
        for type_in_hint in (hint, *get_args(hint))
        if isinstance(type_in_hint, type) and issubclass(type_in_hint, StrEnum)
    ]
    return words[0](option) if words else option
