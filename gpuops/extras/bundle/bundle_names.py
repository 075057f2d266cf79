"""Keep the key of bundles' pseudonyms, and the names behind them, in the state directory.

They are no records of the book of a vCenter: names are looked up without connecting to one.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.state.lock import BUNDLE_NAMES, waited_for
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_new, write_private

_KEY: Final = "bundle.key"
_NAMES: Final = "bundle-names.json"
_LARGEST: Final = 64 * 1024 * 1024


def key_of_bundles(state_dir: Path) -> bytes:
    """Return the key of this machine, or a new one that is not saved. Raises StateDamaged if others may read it."""
    path = state_dir / _KEY
    if not path.is_symlink() and not path.exists():
        return secrets.token_bytes(32)
    private_file(path)
    text = read_bytes(path, error=StateDamaged).decode("ascii", "replace").strip()
    if not re.fullmatch("[0-9a-f]{64}", text):
        hint = "rename this file; the next bundle then has other pseudonyms"
        raise StateDamaged(f"{path} is not a key of bundles", hint=hint)
    return bytes.fromhex(text)


def remember(state_dir: Path, key: bytes, names: Mapping[str, str]) -> None:
    """Save the key, and add these real names, by pseudonym, to those of earlier bundles.

    If two bundles are written at once, the second waits until the first has saved its names. Raises StateDamaged, and
    UsageError if the first has saved another key.
    """
    prepare_state_dir(state_dir)
    write_new(state_dir / _KEY, key.hex() + "\n")
    if key_of_bundles(state_dir) != key:  # `write_new` does not replace a key
        raise UsageError("another bundle was written here at the same time", hint="run the same command again")
    with waited_for(state_dir / BUNDLE_NAMES):
        write_private(state_dir / _NAMES, json.dumps({**_names(state_dir), **names}, indent=0, sort_keys=True) + "\n")


def name_behind(state_dir: Path, pseudonym: str) -> str:
    """Return the name that a pseudonym stands for. Raises UsageError if no bundle that was written here has it."""
    name = _names(state_dir).get(pseudonym)
    if name is None:
        hint = "only the machine and user that wrote it know its names; an id such as vm-1234 is vCenter's own"
        raise UsageError(f"{pseudonym!r} is in no bundle that was written here", hint=hint)
    return name


def _names(state_dir: Path) -> dict[str, str]:
    path = state_dir / _NAMES
    if not path.is_symlink() and not path.exists():
        return {}
    private_file(path)
    try:
        names = parse_json(read_bytes(path, largest=_LARGEST, error=StateDamaged))
        return {str(pseudonym): str(name) for pseudonym, name in names.items()}
    except (*NOT_PARSED, AttributeError) as error:
        raise StateDamaged(f"{path} is not the list of names that bundles keep", hint="rename this file") from error
