"""Login: a way to a vCenter made complete with the user's password: what `vsphere` connects to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuops.config.password import find_password
from gpuops.config.sources import Destination
from gpuops.errors import LoginRefused
from gpuops.model.target import Target


def login(where: Destination, environ: Mapping[str, str], ask: Callable[[str], str] | None) -> Target:
    """The target with its password. `ask` prompts a person, None = nobody is there.

    Raises TargetError for a source that cannot be read, LoginRefused when there is no user name or no password.
    """
    if not where.username:
        raise LoginRefused(
            f"no user name for {where.address}",
            hint="say --username, set GPUOPS_USERNAME, or put `username` in the [targets.NAME]",
        )
    return Target(
        host=where.address.host,
        port=where.address.port,
        tls=where.address.tls,
        username=where.username,
        password=find_password(where, environ, ask),
        ca_files=tuple(map(str, where.ca_files)),
        verify=where.verify,
        pin=where.thumbprint,
        proxy=where.proxy,
    )
