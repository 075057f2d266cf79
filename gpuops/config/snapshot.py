"""Saves an inventory as a JSON file and loads it again, to plan on it without a vCenter (`--inventory FILE`).

The file contains the values of `gpuops.model` unchanged: a loaded inventory equals the one that was saved. Programs
should read `gpuops inventory --output json` instead, whose keys do not change with the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gpuops import __version__
from gpuops.errors import UsageError
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private
from gpuops.model.stored import to_stored
from gpuops.model.stored_json import NotDecoded, decode_stored, json_text
from gpuops.model.vcenter.inventory import Inventory

SCHEMA_VERSION: Final = 1
LARGEST: Final = 512 * 1024 * 1024
"""The limit in bytes: three times the snapshot of 100,000 VMs."""
_KIND: Final = "snapshot"


def save(inventory: Inventory, path: Path) -> None:
    """Write the complete snapshot or nothing, with mode 0600. Raises UsageError."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": _KIND,
        "gpuops": __version__,
        "inventory": to_stored(inventory),
    }
    write_private(path, json_text(document) + "\n")


def load(path: Path) -> Inventory:
    """Return the snapshot in a file that `save` wrote. Raises UsageError that names the first mistake."""
    raw = read_bytes(path, largest=LARGEST)
    try:
        return _decode_document(path, parse_json(raw))
    except NOT_PARSED as error:
        raise _no_snapshot(path) from error


def _decode_document(path: Path, document: Any) -> Inventory:
    """Return the inventory in the document. Raises UsageError for another document, another version or a mistake."""
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        raise _no_snapshot(path)
    if document.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"{path} is a saved inventory of version {document.get('schema_version')}, written by gpuops "
            f"{document.get('gpuops')}; this gpuops reads version {SCHEMA_VERSION}",
            hint="save a new one: gpuops inventory --save FILE",
        )
    try:
        return decode_stored(Inventory, document.get("inventory"))
    except NotDecoded as error:
        hint = "save a new one: gpuops inventory --save FILE"
        raise UsageError(f"{path} is not a complete inventory: {error}", hint=hint) from error


def _no_snapshot(path: Path) -> UsageError:
    return UsageError(f"{path} is not a saved inventory", hint="gpuops inventory --save FILE writes one")
