"""Connection: what a task says of the vCenter, and a site to work on.

What it leaves out comes from GPUOPS_*, VMWARE_*, GOVC_* and the configuration file, in this order, as for the command
line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.config import private_file
from gpuops.config.file import config_file
from gpuops.config.layers import Flags
from gpuops.config.sources import SERVED, SIMULATED, Destination, Simulated, doubt, resolve
from gpuops.config.targets import Configuration, read_configuration
from gpuops.errors import TargetError, UsageError
from gpuops.execute.state import default_state_dir
from gpuops.model.secret import Secret

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.model.rotation import Policy


def forbid_core_files() -> None:
    """The first thing of every module and of the inventory plugin: no crash writes the password to a disk."""
    private_file.forbid_core_files()


@dataclass(frozen=True, slots=True)
class Said:
    """The connection's arguments of a task; None = it does not say. The names are those of `vmware.vmware`."""

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
    state_dir: str | None = None


def reach(said: Said, environ: Mapping[str, str] = os.environ) -> Destination | Simulated:
    """The vCenter meant and the way to it. Raises TargetError, UsageError."""
    if said.password is not None and said.password_file is not None:
        raise UsageError("password and password_file exclude each other", hint="give one of them")
    if said.journal_url is not None:  # it may hold a password: an argument that is not logged is no command line
        environ = {**environ, "GPUOPS_JOURNAL_URL": said.journal_url}
    configuration = read_configuration(config_file(environ))
    flags = Flags(
        vcenter=_vcenter(said, configuration),
        username=said.username,
        password=Secret(said.password) if said.password is not None else None,
        password_file=_path(said.password_file),
        ca_file=_path(said.ca_file),
        insecure=said.validate_certs is False,
        proxy=f"{said.proxy_host}:{said.proxy_port or 8080}" if said.proxy_host else None,
    )
    where = resolve(flags, environ, configuration)
    if isinstance(where, Simulated):
        return where
    if said.validate_certs is None:
        return where
    # a task that says so is nearer than any variable or target
    return replace(where, verify=said.validate_certs, verify_origin="validate_certs")


def open_site(
    said: Said,
    *,
    guarded: bool = False,
    returning: bool = False,
    policy: Policy | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Site, list[str]]:
    """A logged-in site, to be closed, and what to warn of, which may grow. Raises TargetError, NotConnected, Refused.

    `guarded` is a rotation: refused over a connection that is not verified, unless the task itself says
    `validate_certs: false`. `returning`: it waits for a vCenter that is away as long as the policy's desktops need.
    """
    from gpuops.api import connect
    from gpuops.clock import pause, wall_clock
    from gpuops.execute.audit import unverified
    from gpuops.execute.patience import Patience

    where = reach(said, environ)
    state_dir = Path(said.state_dir).expanduser() if said.state_dir else None
    warning = doubt(where, guarded=guarded, decided=said.validate_certs is False)
    if warning is not None and not isinstance(where, Simulated):
        at = wall_clock().isoformat(timespec="seconds")
        unverified(where, state_dir or default_state_dir(environ), at, ["ansible"])
    warnings = [warning] if warning else []
    patience = Patience(policy, wall_clock, pause, warnings.append) if returning else None
    return connect(where, environ=environ, state_dir=state_dir, patience=patience), warnings


def _vcenter(said: Said, configuration: Configuration) -> str | None:
    """As the command line would name it. A bare word that is no target is a host: Ansible's users write them so."""
    name = said.hostname
    if not name:
        if said.port is not None:
            raise TargetError("port says nothing without hostname", hint="set hostname, or VMWARE_HOST and VMWARE_PORT")
        return None
    if name.startswith((SIMULATED, SERVED)) or name in configuration.targets:
        return name
    address = name if "://" in name else f"https://{f'[{name}]' if name.count(':') > 1 and '[' not in name else name}"
    if said.port is None or address.rpartition("]")[2].rpartition("//")[2].partition("/")[0].count(":"):
        return address
    scheme, _, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}:{said.port}{slash}{path}"


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None
