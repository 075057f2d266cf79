"""Steps as plain JSON and back, for the journal: `{"SuspendVm": {"vm": "vm-42"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from gpuops.errors import StateDamaged
from gpuops.model.stored import stored_name, to_stored
from gpuops.model.stored_json import decode_stored, json_values
from gpuops.plan.core.steps import EndTurn, HostStep, HostTask, RunClusterProgram, Step, VcenterSetting

Recorded = Step | HostStep | HostTask | EndTurn | VcenterSetting | RunClusterProgram
"""The steps whose intent a journal records."""
_KINDS: Final[Mapping[str, type[Recorded]]] = {stored_name(kind): kind for kind in get_args(Recorded)}
"""By stored name: several kinds have the same fields."""


def dump_step(step: Recorded) -> dict[str, Any]:
    return {stored_name(type(step)): json_values(to_stored(step))}


def load_step(body: Mapping[str, Any]) -> Recorded:
    """Return the step that `dump_step` wrote. Raises StateDamaged."""
    try:
        [(kind, fields)] = body.items()
        return decode_stored(_KINDS[kind], fields)
    except (ValueError, KeyError) as error:
        raise StateDamaged(
            f"the journal holds a step that this version cannot read: {str(body)[:80]}",
            hint="use the gpuops that wrote it, or a later one",
        ) from error
