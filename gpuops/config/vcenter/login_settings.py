"""Finds the login to a vCenter, to its connection broker, and to guests. `api.connection` uses it.

A password comes from a file, stdin, the environment, a systemd credential, a keyring, or a prompt. It is never the
value of an option: every user of the machine can read a command line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from gpuops.config.vcenter.destination import Destination
from gpuops.config.vcenter.layers import Sourced
from gpuops.distribution import install_extra
from gpuops.errors import TargetError
from gpuops.files.file import read_bytes
from gpuops.model.vcenter.target import GuestLogin, Secret, Target

if TYPE_CHECKING:
    from gpuops.config.vcenter.broker_entry import BrokerDestination
    from gpuops.config.vcenter.targets import GuestEntry


def login(where: Destination, environ: Mapping[str, str], ask: Callable[[str], str] | None) -> Target:
    """Return the target with its password. `ask` prompts a person; None = no terminal.

    Raises TargetError for a source that cannot be read, and when there is no user name or no password.
    """
    if not where.username:
        raise TargetError(
            f"no user name for {where.address}",
            hint="add --username, set GPUOPS_USERNAME, or put `username` into [targets.NAME]",
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


_LIMIT_BYTES: Final = 65536


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential of systemd: LoadCredential= of a unit puts it into CREDENTIALS_DIRECTORY."""

    name: str
    directory: str | None
    """CREDENTIALS_DIRECTORY; None = systemd gave this process no credentials."""


PasswordSource: TypeAlias = "Sourced[Secret | Path | Credential]"
"""Where a password is (it is not read yet), and the option, variable or key that names the place."""


def find_password(destination: Destination, environ: Mapping[str, str], ask: Callable[[str], str] | None) -> Secret:
    """Return the password, from the first source that has one; `ask` prompts a person; None = no terminal.

    Raises TargetError for a configured source that cannot be read, and without any source.
    """
    source = vcenter_password(destination, environ)
    password = read_password(source) if source is not None else _from_keyring(destination)
    if password is not None:
        return password
    if ask is not None:
        return Secret(ask(f"Password of {destination.username} at {destination.address}: "))
    missing = f"no password for {destination.username} at {destination.address}"
    if destination.password_of_other is not None:
        raise TargetError(
            f"{missing}: [targets.{destination.name}] has only the password of {destination.password_of_other}",
            hint=f"give that of {destination.username} with --password-file, --password-stdin or GPUOPS_PASSWORD, "
            f"or log in as {destination.password_of_other}: remove --username and GPUOPS_USERNAME",
        )
    raise TargetError(
        missing,
        hint="use --password-file, --password-stdin or GPUOPS_PASSWORD, or put `password_file` into its [targets.NAME]",
    )


def vcenter_password(destination: Destination, environ: Mapping[str, str]) -> PasswordSource | None:
    """Return where the password of a vCenter is; None = nowhere, or in the keyring."""
    password = destination.password if destination.password is not None else destination.password_file
    if password is not None:
        return Sourced(password, destination.origins.get("password", ""))
    entry = f"targets.{destination.name}"
    return _credential("gpuops-password", destination.credential, entry, destination.name, environ)


def other_password(
    server: str, keys: BrokerDestination | GuestEntry | None, target: str | None, environ: Mapping[str, str]
) -> PasswordSource | None:
    """Return the source of the password for the broker (`server` is `broker`) or the guests (`guest`) of a target.

    None = there is no source. The first of these counts: GPUOPS_BROKER_PASSWORD_FILE, GPUOPS_BROKER_PASSWORD (for
    guests GPUOPS_GUEST_...), the file that the configuration names, a systemd credential.
    """
    variable, entry = f"GPUOPS_{server.upper()}_PASSWORD", f"targets.{target}.{server}"
    if file := environ.get(f"{variable}_FILE"):
        return Sourced(Path(file), f"{variable}_FILE")
    if password := environ.get(variable):
        return Sourced(Secret(password), variable)
    if keys is not None and keys.password_file is not None:
        return Sourced(keys.password_file, f"{entry}.password_file")
    return _credential(
        f"gpuops-{server}-password", keys.credential if keys is not None else None, entry, target, environ
    )


def _credential(
    default_name: str, configured_name: str | None, entry: str, target: str | None, environ: Mapping[str, str]
) -> PasswordSource | None:
    """Return the credential that the entry names, else `DEFAULT_NAME-TARGET` or `DEFAULT_NAME` if it exists."""
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if configured_name is not None:
        return Sourced(Credential(configured_name, directory), f"{entry}.credential")
    if not directory:
        return None
    for name in [f"{default_name}-{target}", default_name] if target else [default_name]:
        # the name of a target may contain characters that a file name cannot
        if re.fullmatch(r"[A-Za-z0-9._-]+", name) and Path(directory, name).exists():
            return Sourced(Credential(name, directory), "CREDENTIALS_DIRECTORY")
    return None


def read_password(source: PasswordSource) -> Secret:
    """Return the password. Raises TargetError if its file or its credential cannot be read."""
    match source.value:
        case Secret() as password:
            return password
        case Path() as file:
            return read_password_file(file, private=True)
        case Credential(name, directory):
            if directory is None:
                message = f"{source.origin} names a systemd credential, but CREDENTIALS_DIRECTORY is not set"
                raise TargetError(message, hint=f"add LoadCredential={name}:/path to the systemd unit")
            return read_password_file(Path(directory) / name)


def read_password_file(
    path: Path, *, private: bool = False, content_name: str = "password", several_lines: bool = False
) -> Secret:
    """Return the file's text without a byte order mark and line ends at its end. Raises TargetError.

    `private` refuses a file that others can read. `content_name` is what messages call the content.
    `several_lines` allows more than one line.
    """
    name = f"the {content_name} file {path}"
    content = read_bytes(
        path,
        largest=_LIMIT_BYTES,
        error=TargetError,
        name=name,
        hint=f"name a file that contains the {content_name} and nothing else",
        check=partial(_refuse_shared, name, path) if private else None,
    )
    try:
        text = content.decode("utf-8-sig").rstrip("\r\n")  # editors on Windows write such a mark
    except UnicodeDecodeError:
        # Not chained: the error contains the bytes of a secret, and a traceback would show them.
        raise TargetError(f"{name} is not UTF-8 text", hint=f"write the {content_name} into it as UTF-8 text") from None
    if not text:
        raise TargetError(f"{name} is empty", hint=f"it must contain the {content_name} and nothing else")
    if not several_lines and set(text) & set("\r\n"):
        raise TargetError(f"{name} has several lines", hint=f"it must contain the {content_name} and nothing else")
    return Secret(text)


def _refuse_shared(name: str, path: Path, file_status: os.stat_result) -> None:
    """Raise TargetError for a password file that other users can read, as ssh refuses such keys.

    A file of another user may be readable by our group: services get their files that way.

    Only regular files are checked: no other process can read a pipe. It is not called for credentials of systemd: their
    directory is private, and its access list would look like read access of a group.
    """
    # 0o077: any access by group or others; 0o007: by others
    forbidden_bits = 0o077 if file_status.st_uid == os.geteuid() else 0o007
    if stat.S_ISREG(file_status.st_mode) and file_status.st_mode & forbidden_bits:
        mode = stat.S_IMODE(file_status.st_mode)
        raise TargetError(f"{name} can be read or written by others (mode {mode:o})", hint=f"chmod 600 {path}")


def _from_keyring(destination: Destination) -> Secret | None:
    """Return the password in the system's keyring; None if it has none, or the target does not use it."""
    if not destination.keyring:
        return None
    try:
        import keyring
        import keyring.errors
    except ImportError as error:
        raise TargetError(
            f"targets.{destination.name}.keyring is set, but the keyring package is not installed",
            hint=install_extra("keyring"),
        ) from error
    try:
        password: str | None = keyring.get_password("gpuops", f"{destination.username}@{destination.address.host}")
    except keyring.errors.KeyringError as error:
        hint = "unlock the keyring, or use --password-file"
        raise TargetError(f"the keyring cannot be read: {type(error).__name__}", hint=hint) from error
    return Secret(password) if password is not None else None


def guest_login(
    environ: Mapping[str, str], target: str | None = None, entry: GuestEntry | None = None
) -> GuestLogin | None:
    """Return the login to the guests of a target, from the environment or its `entry`; None if neither has a user.

    Raises TargetError for a user without a password, or a file that cannot be read.
    """
    user = guest_user(environ, target, entry)
    if user is None:
        return None
    username, source = user
    if source is not None:
        return GuestLogin(username.value, read_password(source))
    is_user_of_entry = entry is not None and username.value == entry.username
    where = f"[targets.{target}.guest]" if is_user_of_entry else "GPUOPS_GUEST_USERNAME"
    raise TargetError(
        f"no password for the guest user {username.value!r} of {where}",
        hint=f"put password_file into {where}"
        if is_user_of_entry
        else "set GPUOPS_GUEST_PASSWORD_FILE to a file that only you can read",
    )


def guest_user(
    environ: Mapping[str, str], target: str | None, entry: GuestEntry | None
) -> tuple[Sourced[str], PasswordSource | None] | None:
    """Return the user of GPUOPS_GUEST_USERNAME, else of the target's entry, and where its password is.

    If the variable has another user than the entry, the password of the entry is not used.
    """
    user_of_variable = environ.get("GPUOPS_GUEST_USERNAME")
    usable_entry = entry if entry is not None and user_of_variable in (None, "", entry.username) else None
    username = Sourced(user_of_variable, "GPUOPS_GUEST_USERNAME") if user_of_variable else None
    if username is None and entry is not None:
        username = Sourced(entry.username, f"targets.{target}.guest.username")
    return None if username is None else (username, other_password("guest", usable_entry, target, environ))


def guest_keys(environ: Mapping[str, str]) -> tuple[Path | None, Path]:
    """Return the file of the SSH key for guests (None = the agent's keys and those in ~/.ssh), and of known guests.

    GPUOPS_GUEST_SSH_KEY and GPUOPS_GUEST_SSH_KNOWN_HOSTS name them.
    """
    key, known_hosts = environ.get("GPUOPS_GUEST_SSH_KEY"), environ.get("GPUOPS_GUEST_SSH_KNOWN_HOSTS")
    return Path(key) if key else None, Path(known_hosts or "~/.ssh/known_hosts")
