"""The login to a vCenter, and the one to guests whose checkpoint hooks a morning runs. `api.connection` calls both.

A password comes from a file, stdin, the environment, a systemd credential, a keyring, or a prompt. It is never an
option's value: a command line is readable by everybody on the machine.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuops.config.vcenter.destination import Destination
from gpuops.distribution import install_extra
from gpuops.errors import TargetError
from gpuops.files.file import read_bytes
from gpuops.model.vcenter.target import GuestLogin, Secret, Target

if TYPE_CHECKING:
    from gpuops.config.vcenter.guest import GuestEntry


def login(where: Destination, environ: Mapping[str, str], ask: Callable[[str], str] | None) -> Target:
    """Return the target with its password. `ask` prompts a person; None = no terminal.

    Raises TargetError for a source that cannot be read, and when there is no user name or no password.
    """
    if not where.username:
        raise TargetError(
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


VCENTER_CREDENTIAL: Final = "gpuops-password"
BROKER_CREDENTIAL: Final = "gpuops-broker-password"
GUEST_CREDENTIAL: Final = "gpuops-guest-password"
"""Usual names of systemd's credentials."""
_LIMIT_BYTES: Final = 65536


def find_password(destination: Destination, environ: Mapping[str, str], ask: Callable[[str], str] | None) -> Secret:
    """Return the password, from the first source that has one; `ask` prompts a person; None = no terminal.

    Raises TargetError for a configured source that cannot be read, and without any source.
    """
    if destination.password is not None:
        return destination.password
    file = password_file_of(destination)
    if file is not None:
        return read_password_file(file, private=True)
    entry = f"targets.{destination.name}.credential"
    credential = credential_file(VCENTER_CREDENTIAL, destination.credential, entry, destination.name, environ)
    password = read_password_file(credential) if credential is not None else _from_keyring(destination)
    if password is not None:
        return password
    if ask is not None:
        return Secret(ask(f"Password of {destination.username} at {destination.address}: "))
    missing = f"no password for {destination.username} at {destination.address}"
    if destination.password_of_other is not None:
        raise TargetError(
            f"{missing}: [targets.{destination.name}] names the password of {destination.password_of_other} alone",
            hint=f"use --password-file, --password-stdin or GPUOPS_PASSWORD for that of {destination.username}; or log "
            f"in as {destination.password_of_other}: leave --username out, and GPUOPS_USERNAME",
        )
    raise TargetError(
        missing,
        hint="use --password-file, --password-stdin or GPUOPS_PASSWORD, or say `password_file` in its [targets.NAME]",
    )


def password_file_of(destination: Destination) -> Path | None:
    """The file of which `find_password` takes the password; None = it comes from elsewhere."""
    return None if destination.password is not None else destination.password_file or destination.target_password_file


def read_password_file(
    path: Path, *, private: bool = False, holds: str = "password", several_lines: bool = False
) -> Secret:
    """The file's text without a byte order mark and the line ends behind it. Raises TargetError.

    `private` refuses a file that others can read. `holds` is the word that messages have for what is in it, and
    `several_lines` says that it may be more than one.
    """
    name = f"the {holds} file {path}"
    content = read_bytes(
        path,
        largest=_LIMIT_BYTES,
        error=TargetError,
        name=name,
        hint=f"name a file that holds the {holds} and nothing else",
        check=partial(_refuse_shared, name, path) if private else None,
    )
    try:
        text = content.decode("utf-8-sig").rstrip("\r\n")  # editors on Windows write such a mark
    except UnicodeDecodeError:
        # Not chained: the error holds the bytes of a secret, and a traceback would show them.
        raise TargetError(f"{name} is not UTF-8 text") from None
    if not text:
        raise TargetError(f"{name} is empty", hint=f"it holds the {holds} and nothing else")
    if not several_lines and set(text) & set("\r\n"):
        raise TargetError(f"{name} has several lines", hint=f"it holds the {holds} and nothing else")
    return Secret(text)


def _refuse_shared(name: str, path: Path, file_status: os.stat_result) -> None:
    """Refuse a password file that others can read, as ssh does with keys.

    A file of another user may be readable for our group: services get their files that way.

    A pipe has no readers but us. systemd's credentials are not asked: their directory is private, and an access list
    shows as a group's right to read.
    """
    forbidden_bits = 0o077 if file_status.st_uid == os.geteuid() else 0o007
    if stat.S_ISREG(file_status.st_mode) and file_status.st_mode & forbidden_bits:
        mode = stat.S_IMODE(file_status.st_mode)
        raise TargetError(f"{name} can be read or written by others (mode {mode:o})", hint=f"chmod 600 {path}")


def credential_file(
    usual: str, configured_name: str | None, entry: str, target: str | None, environ: Mapping[str, str]
) -> Path | None:
    """Return the file of LoadCredential= in systemd: the one named by the `entry`, else `USUAL-TARGET`, else `USUAL`.

    None = no such file. Raises TargetError if the entry names one and this process is not a unit.
    """
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if configured_name is not None and folder is None:
        raise TargetError(
            f"{entry} is set, and CREDENTIALS_DIRECTORY is not",
            hint=f"LoadCredential={configured_name}:/path in the unit",
        )
    if configured_name is not None and folder is not None:
        return Path(folder) / configured_name
    names = ([f"{usual}-{target}"] if target else []) + [usual]
    usable = (
        (Path(folder) / file_name for file_name in names if re.fullmatch(r"[A-Za-z0-9._-]+", file_name))
        if folder
        else iter(())
    )
    return next((path for path in usable if path.exists()), None)


def _from_keyring(destination: Destination) -> Secret | None:
    if not destination.keyring:
        return None
    try:
        import keyring
        import keyring.errors
    except ImportError as error:
        raise TargetError(
            f"targets.{destination.name}.keyring is set, and the keyring package is not installed",
            hint=install_extra("keyring"),
        ) from error
    try:
        password: str | None = keyring.get_password("gpuops", f"{destination.username}@{destination.address.host}")
    except keyring.errors.KeyringError as error:
        raise TargetError(f"the keyring cannot be read: {type(error).__name__}") from error
    return Secret(password) if password is not None else None


def guest_login(
    environ: Mapping[str, str], target: str | None = None, entry: GuestEntry | None = None
) -> GuestLogin | None:
    """Return the user of GPUOPS_GUEST_USERNAME, else of that target's entry, with its password; None = no user.

    The password is in the file that GPUOPS_GUEST_PASSWORD_FILE names, in GPUOPS_GUEST_PASSWORD, in the entry's
    `password_file`, or in a systemd credential; another user is not given what the entry names.
    Raises TargetError for a user without a password, or a file that cannot be read.
    """
    spoken = environ.get("GPUOPS_GUEST_USERNAME")
    own_entry = entry if entry is not None and spoken in (None, "", entry.username) else None
    username = spoken or (entry.username if entry is not None else None)
    if not username:
        return None
    return GuestLogin(username, _guest_password(environ, username, target, own_entry))


def guest_keys(environ: Mapping[str, str]) -> tuple[Path | None, Path]:
    """The key by which guests are entered over SSH, None = the agent's and those in ~/.ssh; and the keys of guests.

    GPUOPS_GUEST_SSH_KEY and GPUOPS_GUEST_SSH_KNOWN_HOSTS name the files.
    """
    key, known_hosts = environ.get("GPUOPS_GUEST_SSH_KEY"), environ.get("GPUOPS_GUEST_SSH_KNOWN_HOSTS")
    return Path(key) if key else None, Path(known_hosts or "~/.ssh/known_hosts")


def _guest_password(
    environ: Mapping[str, str], username: str, target: str | None, own_entry: GuestEntry | None
) -> Secret:
    if file := environ.get("GPUOPS_GUEST_PASSWORD_FILE"):
        return read_password_file(Path(file), private=True)
    spoken = environ.get("GPUOPS_GUEST_PASSWORD")
    if spoken:
        return Secret(spoken)
    if own_entry is not None and own_entry.password_file is not None:
        return read_password_file(own_entry.password_file, private=True)
    named = own_entry.credential if own_entry is not None else None
    credential = credential_file(GUEST_CREDENTIAL, named, f"targets.{target}.guest.credential", target, environ)
    if credential is not None:
        return read_password_file(credential)
    source_name = f"[targets.{target}.guest]" if own_entry is not None else "GPUOPS_GUEST_USERNAME"
    raise TargetError(
        f"no password for the guest user {username!r} of {source_name}",
        hint=f"put password_file into {source_name}"
        if own_entry is not None
        else "set GPUOPS_GUEST_PASSWORD_FILE to a file that only you can read",
    )
