"""Where the state directory keeps a measurement that was begun, so that a later call goes on with it; and what it needs
of a vCenter beside what any run needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from gpuops.errors import Refused, StateDamaged
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.state.state_dir import prepare_state_dir
from gpuops.files.file import read_bytes
from gpuops.files.private_file import write_private
from gpuops.model.guests.guest_command import CommandEnd, RunningCommand
from gpuops.model.measurements.sharing_measurement import SharingMeasurement

LARGEST: Final = 16 * 1024 * 1024


@runtime_checkable
class MeasuringPort(Protocol):
    """A vCenter in which commands are run in guests."""

    def require_made(self, vm: str, name: str, notes: str) -> None:
        """Raises Refused for a VM of another name, or without these notes."""
        ...

    def start_command(self, vm: str, name: str, command: str, op_id: str) -> RunningCommand:
        """A command of a shell on its way in a guest. Raises Refused without a login for guests, OutcomeUnknown."""
        ...

    def wait_for_commands(self, commands: Sequence[RunningCommand], timeout_s: float) -> Iterator[CommandEnd]:
        """How each of them ended, as it is seen; one that still runs when the time is up is ended."""
        ...


def measuring_port(vcenter: Vcenter) -> MeasuringPort:
    """The same vCenter, as one in which it is measured. Raises Refused for a saved inventory."""
    if not isinstance(vcenter, MeasuringPort):
        raise Refused("a saved inventory runs nothing", hint="use --vcenter")
    return vcenter


def load_measurement(state_dir: Path, vcenter: str) -> SharingMeasurement | None:
    """The measurement of this vCenter that did not end; None = there is none. Raises StateDamaged."""
    from pydantic import ValidationError

    path = _path(state_dir, vcenter)
    if not path.exists():
        return None
    try:
        found: SharingMeasurement = _adapter().validate_json(read_bytes(path, largest=LARGEST, error=StateDamaged))
    except ValidationError as error:
        hint = "remove it, and VMs whose names begin with gpuops-measure- by hand"
        raise StateDamaged(f"{path} is no measurement that this version can read", hint=hint) from error
    return found


def keep_measurement(state_dir: Path, vcenter: str, measurement: SharingMeasurement) -> None:
    """Keep it, on disk before this returns. Raises StateDamaged, UsageError for a directory that cannot be written."""
    prepare_state_dir(state_dir)
    write_private(_path(state_dir, vcenter), _adapter().dump_json(measurement).decode("utf-8"))


def forget_measurement(state_dir: Path, vcenter: str) -> None:
    """Its VMs are removed, and it is told: nothing is left to go on with."""
    _path(state_dir, vcenter).unlink(missing_ok=True)


def _path(state_dir: Path, vcenter: str) -> Path:
    return state_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', vcenter)}.measure.json"


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(SharingMeasurement)
