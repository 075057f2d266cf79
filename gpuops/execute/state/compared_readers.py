"""Remembers on which vCenters VI/JSON and SOAP gave equal snapshots: `readers.json` in the state directory.

`gpuops login test` writes it. It holds for one vCenter (its address and its instance uuid) in one version and build:
another one is to be compared again. A file that is missing, damaged or writable by others says nothing of any.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuops.errors import StateDamaged
from gpuops.execute.state.state_dir import prepare_state_dir
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private

_NAME: Final = "readers.json"
_SCHEMA: Final = 1


def known_equal(state_dir: Path, address: str, vcenter: Mapping[str, str]) -> bool:
    """Whether the readers gave equal snapshots of this vCenter, as `identity` describes it."""
    return bool(vcenter.get("uuid")) and _read(state_dir / _NAME).get(address) == dict(vcenter)


def remember(state_dir: Path, address: str, vcenter: Mapping[str, str], *, equal: bool) -> None:
    """Keeps that they did, or drops it. Raises StateDamaged, UsageError for a directory that cannot be used."""
    path = state_dir / _NAME
    known = _read(path)
    kept = {name: each for name, each in known.items() if name != address}
    if equal:
        kept[address] = dict(vcenter)
    if kept == known:
        return
    prepare_state_dir(state_dir)
    write_private(path, json.dumps({"schema_version": _SCHEMA, "equal": kept}, indent=2) + "\n")


def identity(about: Mapping[str, str | None], api_version: str) -> dict[str, str]:
    """What AboutInfo says of a vCenter and its version."""
    told = {"uuid": "instanceUuid", "version": "version", "build": "build"}
    return {"api_version": api_version, **{name: about.get(key) or "" for name, key in told.items()}}


def _read(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(read_bytes(path, error=StateDamaged, check=_private))
        if document["schema_version"] != _SCHEMA or not isinstance(document["equal"], dict):
            return {}
        return dict(document["equal"])
    except (*NOT_PARSED, AttributeError, StateDamaged):
        return {}


def _private(found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise StateDamaged("others can write what is remembered of vCenters")
