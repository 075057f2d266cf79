"""Remember for which vCenters VI/JSON and SOAP gave equal snapshots: `readers.json` in the state directory.

`gpuops login test` writes it. An entry holds for one vCenter (address and instance uuid) in one version and build;
after an upgrade the readers must be compared again. A file that is missing, damaged or writable by others is ignored.
It is no record of the book: every command reads it when it connects, most of them without opening a journal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuops.errors import StateDamaged
from gpuops.execute.state.state_dir import prepare_state_dir, refuse_writable
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private

_NAME: Final = "readers.json"
_SCHEMA: Final = 1


def known_equal(state_dir: Path, address: str, vcenter: Mapping[str, str]) -> bool:
    """Return whether the readers gave equal snapshots of this vCenter. `vcenter`: its `identity`."""
    return bool(vcenter.get("uuid")) and _read(state_dir / _NAME).get(address) == dict(vcenter)


def remember(state_dir: Path, address: str, vcenter: Mapping[str, str], *, equal: bool) -> None:
    """Save that both readers gave equal snapshots for this vCenter or, if they did not, remove its entry.

    Raises StateDamaged, and UsageError for a directory that cannot be used.
    """
    path = state_dir / _NAME
    stored_vcenters = _read(path)
    new_vcenters = {name: stored_vcenter for name, stored_vcenter in stored_vcenters.items() if name != address}
    if equal:
        new_vcenters[address] = dict(vcenter)
    if new_vcenters == stored_vcenters:
        return
    prepare_state_dir(state_dir)
    write_private(path, json.dumps({"schema_version": _SCHEMA, "equal": new_vcenters}, indent=2) + "\n")


def identity(about: Mapping[str, str | None], api_version: str) -> dict[str, str]:
    """Return the identity of a vCenter and its version, from AboutInfo."""
    about_keys = {"uuid": "instanceUuid", "version": "version", "build": "build"}
    return {"api_version": api_version, **{name: about.get(key) or "" for name, key in about_keys.items()}}


def _read(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(read_bytes(path, error=StateDamaged, check=refuse_writable))
        if document["schema_version"] != _SCHEMA or not isinstance(document["equal"], dict):
            return {}
        return dict(document["equal"])
    except (*NOT_PARSED, AttributeError, StateDamaged):
        return {}
