"""Save an unfinished measurement in the state directory for a later call; and the port to vCenter that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from gpuops.errors import Refused, StateDamaged
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.state.state_dir import prepare_state_dir
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private
from gpuops.model.guests.guest_command import CommandEnd, RunningCommand
from gpuops.model.measurements.sharing_measurement import SharingMeasurement
from gpuops.model.stored import to_stored
from gpuops.model.stored_json import decode_stored, json_text

LARGEST: Final = 16 * 1024 * 1024


@runtime_checkable
class MeasuringPort(Protocol):
    """A vCenter that runs commands in guests, for measurements."""

    def require_made(self, vm: str, name: str, notes: str) -> None:
        """Raise Refused for a VM with another name or without these notes."""
        ...

    def start_command(self, vm: str, name: str, command: str, op_id: str) -> RunningCommand:
        """Start a shell command in a guest. Raises Refused without a login for guests, OutcomeUnknown."""
        ...

    def wait_for_commands(self, commands: Sequence[RunningCommand], timeout_s: float) -> Iterator[CommandEnd]:
        """Yield the end of each command as it ends; a command that still runs after `timeout_s` is terminated."""
        ...


def measuring_port(vcenter: Vcenter) -> MeasuringPort:
    """Return the vCenter as a port for measurements. Raises Refused for a saved inventory."""
    if not isinstance(vcenter, MeasuringPort):
        raise Refused("a saved inventory cannot run commands in guests", hint="use --vcenter")
    return vcenter


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
