"""The login to the guests of a target's VMs: its entry in the configuration file.

[targets.prod.guest]
username = "keeper"
password_file = "/etc/gpuops/prod-guest.password"    # or a systemd credential

`login.guest_login` finds the password. What GPUOPS_GUEST_USERNAME and its like say comes first, as of every login.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from gpuops.config.decoding import Section


class GuestEntry(Section, omit_defaults=True):
    """One `[targets.NAME.guest]`. As in the target itself there is no `password` key."""

    username: Annotated[str, Meta(min_length=1)]
    password_file: Path | None = None
    credential: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    """Name of a systemd credential; default `gpuops-guest-password-NAME`, then `gpuops-guest-password`."""
