"""Where notices are sent: the key `notify` of a target, a list of apprise URLs.

Such a URL holds a password or a token, so it does not stand in the configuration file: an entry names where it is
(`env:VARIABLE`, `file:/etc/gpuops/chat.url`, `credential:NAME` of systemd). A `mailto:` URL without a password may
stand there itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from gpuops.config.vcenter.login import read_password_file
from gpuops.errors import TargetError
from gpuops.model.vcenter.target import Secret

_NAMED: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|credential:[A-Za-z0-9._-]+|file:.+", re.DOTALL)
_MAIL: Final = frozenset({"mailto", "mailtos"})
_OPEN_KEYS: Final = frozenset({"from", "to", "cc", "bcc", "name", "reply", "smtp", "mode", "cto", "rto", "verify"})
"""What a mailto: URL may say in the file: none of these is a secret."""
_HOST_IS_A_HOST: Final = _MAIL | {"json", "jsons", "xml", "xmls", "form", "forms"}
"""In the URLs of chats a token stands where others have the host."""


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """The receivers of a target's notices."""

    vcenter: str
    """The target's name."""
    entries: tuple[str, ...]
    """As they stand in the configuration file, without a secret."""


def checked_entry(text: str) -> str:
    """Return the same text. Raises ValueError, which never repeats it, if it holds a secret or is not an entry."""
    if _NAMED.fullmatch(text) or _is_open_mail(text):
        return text
    raise ValueError(
        "such a URL holds a password or a token, and none belongs in this file: say env:VARIABLE, file:PATH or "
        "credential:NAME (a mailto: URL without a password may stand here)"
    )


def url_of(entry: str, environ: Mapping[str, str]) -> Secret:
    """Return the apprise URL of an entry: `env:NAME`, `file:PATH`, `credential:NAME`, or the URL itself.

    Raises TargetError if the variable or file is missing, or if other users can read the file.
    """
    how, _, name = entry.partition(":")
    if how == "env":
        if not environ.get(name):
            raise TargetError(f"notify: {name} is not set", hint=f"set {name} to the URL")
        return Secret(environ[name].strip())
    if how == "file":
        return Secret(read_password_file(Path(name).expanduser(), private=True, holds="URL").reveal().strip())
    if how == "credential":
        folder = environ.get("CREDENTIALS_DIRECTORY")
        if folder is None:
            raise TargetError(
                f"notify: {entry} needs CREDENTIALS_DIRECTORY, which is not set",
                hint=f"add LoadCredential={name}:/path to the systemd unit",
            )
        return Secret(read_password_file(Path(folder) / name, holds="URL").reveal().strip())
    return Secret(entry)


def shown(entry: str, url: Secret | None) -> str:
    """Return what messages call a receiver: scheme, host (unless it may be a token), and the source of the URL."""
    named = entry if _NAMED.fullmatch(entry) else ""
    # without a source, the entry is a URL that may stand in the file: only mailto: may
    if url is None:
        return named or "mailto"
    scheme, address_part, _ = url.reveal().partition("://")  # a text without :// may be a token
    scheme = scheme.lower() if address_part and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,30}", scheme) else "?"
    host = ""
    if scheme in _HOST_IS_A_HOST:
        try:
            host = urlsplit(url.reveal()).hostname or ""
        except ValueError:
            host = ""
    called = f"{scheme}://{host}"
    return f"{called} ({named})" if named else called


def _is_open_mail(text: str) -> bool:
    """Return whether the text is a mailto: URL without a password or any other secret."""
    try:
        parts = urlsplit(text)
        parameters = parse_qsl(parts.query, keep_blank_values=True)
        return (
            parts.scheme in _MAIL
            and bool(parts.hostname)
            and parts.password is None
            and {key.lower() for key, _ in parameters} <= _OPEN_KEYS
        )
    except ValueError:
        return False
