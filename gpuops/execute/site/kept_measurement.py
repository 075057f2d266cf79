"""Save an unfinished measurement in the state directory for a later call.

It is a file: like the lock of measurements it belongs to this machine, and another machine with the same journal must
not continue a measurement that still runs here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gpuops.errors import StateDamaged
from gpuops.execute.state.state_dir import prepare_state_dir
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private
from gpuops.model.measurements.sharing_measurement import SharingMeasurement
from gpuops.model.stored import to_stored
from gpuops.model.stored_json import decode_stored, json_text

LARGEST: Final = 16 * 1024 * 1024
"""The limit for the file, in bytes."""


def load_measurement(state_dir: Path, vcenter: str) -> SharingMeasurement | None:
    """Return the unfinished measurement of this vCenter, or None. Raises StateDamaged."""
    path = _path(state_dir, vcenter)
    if not path.exists():
        return None
    try:
        return decode_stored(SharingMeasurement, parse_json(read_bytes(path, largest=LARGEST, error=StateDamaged)))
    except NOT_PARSED as error:
        hint = "remove the file, and the VMs whose names begin with gpuops-measure-"
        raise StateDamaged(f"{path} does not hold a measurement that this version can read", hint=hint) from error


def keep_measurement(state_dir: Path, vcenter: str, measurement: SharingMeasurement) -> None:
    """Save it; it is on disk when this returns. Raises StateDamaged, UsageError for a read-only directory."""
    prepare_state_dir(state_dir)
    write_private(_path(state_dir, vcenter), json_text(to_stored(measurement)))


def forget_measurement(state_dir: Path, vcenter: str) -> None:
    """Delete the saved measurement: its VMs are removed and its result was printed."""
    _path(state_dir, vcenter).unlink(missing_ok=True)


def _path(state_dir: Path, vcenter: str) -> Path:
    return state_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', vcenter)}.measure.json"
