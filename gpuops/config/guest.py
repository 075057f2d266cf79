"""The login for programs in guests: whose checkpoint hooks a morning runs in the ML VMs that it stops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuops.config.password import read_password_file
from gpuops.errors import TargetError
from gpuops.model.secret import Secret
from gpuops.model.target import GuestLogin

_CREDENTIAL: Final = "gpuops-guest-password"


def guest_login(environ: Mapping[str, str]) -> GuestLogin | None:
    """GPUOPS_GUEST_USERNAME with its password; None where no user is named.

    The password is in the file that GPUOPS_GUEST_PASSWORD_FILE names, in GPUOPS_GUEST_PASSWORD, or in systemd's
    credential `gpuops-guest-password`. Raises TargetError for a user without one, or a file that cannot be read.
    """
    username = environ.get("GPUOPS_GUEST_USERNAME")
    if not username:
        return None
    return GuestLogin(username, _password(environ, username))


def guest_keys(environ: Mapping[str, str]) -> tuple[Path | None, Path]:
    """The key by which guests are entered over SSH, None = the agent's and those in ~/.ssh; and the keys of guests.

    GPUOPS_GUEST_SSH_KEY and GPUOPS_GUEST_SSH_KNOWN_HOSTS name the files.
    """
    key, known = environ.get("GPUOPS_GUEST_SSH_KEY"), environ.get("GPUOPS_GUEST_SSH_KNOWN_HOSTS")
    return Path(key) if key else None, Path(known or "~/.ssh/known_hosts")


def _password(environ: Mapping[str, str], username: str) -> Secret:
    file, folder = environ.get("GPUOPS_GUEST_PASSWORD_FILE"), environ.get("CREDENTIALS_DIRECTORY")
    if file:
        return read_password_file(Path(file), private=True)
    spoken = environ.get("GPUOPS_GUEST_PASSWORD")
    if spoken:
        return Secret(spoken)
    if folder and (path := Path(folder) / _CREDENTIAL).exists():
        return read_password_file(path)
    raise TargetError(
        f"no password for the guest user {username!r} of GPUOPS_GUEST_USERNAME",
        hint="set GPUOPS_GUEST_PASSWORD_FILE to a file that only you can read",
    )
