"""Keep the key of bundles' pseudonyms, and the names behind them, in the state directory."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.state.lock_names import BUNDLE_NAMES
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_new, write_private

KEY_BYTES: Final = 32
_KEY: Final = "bundle.key"
_NAMES: Final = "bundle-names.json"
_KINDS: Final = {
    "vm": "VM", "host": "host", "domain-c": "cluster", "domain-s": "host without a cluster",
    "datastore": "datastore", "resgroup": "resource pool", "resgroup-v": "vApp",
}  # fmt: skip
_OWN_ID: Final = re.compile(rf"(?P<kind>{'|'.join(_KINDS)})-?(?P<number>[0-9]{{1,10}})")
"""A managed object id (`Pseudonyms.ref`)."""
_DIGITS_OF_PSEUDONYMS: Final = 8
"""From this many hexadecimal digits on, a text that could also be an id is looked up as a pseudonym."""
_LARGEST: Final = 64 * 1024 * 1024


def fresh_key() -> bytes:
    """Return a new random key."""
    return secrets.token_bytes(KEY_BYTES)


def known_key(state_dir: Path) -> bytes | None:
    """Return the key of this machine, or None if it has no key yet. Raises StateDamaged if others may read it."""
    path = state_dir / _KEY
    if not path.is_symlink() and not path.exists():
        return None
    private_file(path)
    text = read_bytes(path, error=StateDamaged).decode("ascii", "replace").strip()
    if not re.fullmatch(rf"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        raise StateDamaged(
            f"{path} is not a key of bundles", hint="move it aside: the next bundle has other pseudonyms then"
        )
    return bytes.fromhex(text)


def key_for_ever(state_dir: Path, key: bytes) -> bytes:
    """Save `key` if this machine has no key yet, and return this machine's key. Raises StateDamaged, UsageError."""
    prepare_state_dir(state_dir)
    write_new(state_dir / _KEY, key.hex() + "\n")
    machine_key = known_key(state_dir)
    assert machine_key is not None, "it was written, or was there"
    return machine_key


def remember(state_dir: Path, names: Mapping[str, str]) -> None:
    """Add the names of these pseudonyms to those of earlier bundles. Raises StateDamaged, UsageError.

    If two bundles are written at once, the second waits until the first has saved its names.
    """
    prepare_state_dir(state_dir)
    path = state_dir / BUNDLE_NAMES
    private_file(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        write_private(state_dir / _NAMES, json.dumps({**_names(state_dir), **names}, indent=0, sort_keys=True) + "\n")
    except OSError as error:
        raise StateDamaged(
            f"{path} cannot be locked: {error.strerror}",
            hint="set GPUOPS_STATE_DIR to a directory on a disk of this machine",
        ) from error
    finally:
        os.close(descriptor)


def name_behind(state_dir: Path, pseudonym: str) -> tuple[str, str]:
    """Return the full pseudonym that begins with this text, and its name.

    A short text can also be vCenter's own id: `vm-1234` is taken as the id, `vm-12345678` and longer as a pseudonym.
    Raises UsageError if it is an id, or if no or several pseudonyms match.
    """
    own_id = _OWN_ID.fullmatch(pseudonym)
    if own_id is not None and len(own_id["number"]) < _DIGITS_OF_PSEUDONYMS:
        raise UsageError(
            f"{pseudonym!r} is vCenter's own id of a {_KINDS[own_id['kind']]}, which bundles keep as it is, "
            "and no pseudonym",
            hint=f"look it up in your vCenter; of a pseudonym write {_DIGITS_OF_PSEUDONYMS} digits or more",
        )
    matches = [
        (full_pseudonym, name)
        for full_pseudonym, name in _names(state_dir).items()
        if full_pseudonym.startswith(pseudonym)
    ]
    if len(matches) != 1:
        problem = "is in no bundle that was written here" if not matches else f"begins {len(matches)} pseudonyms"
        hint = (
            "only the machine, and the user, that wrote a bundle know its names"
            if not matches
            else "type more digits of it"
        )
        raise UsageError(f"{pseudonym!r} {problem}", hint=hint)
    return matches[0]


def _names(state_dir: Path) -> dict[str, str]:
    path = state_dir / _NAMES
    if not path.is_symlink() and not path.exists():
        return {}
    private_file(path)
    try:
        names = parse_json(read_bytes(path, largest=_LARGEST, error=StateDamaged))
        return {str(pseudonym): str(name) for pseudonym, name in names.items()}
    except (*NOT_PARSED, AttributeError) as error:
        raise StateDamaged(f"{path} is not the list of names that bundles keep", hint="move it aside") from error
