"""Steps as plain JSON and back, for the journal: `{"SuspendVm": {"vm": "vm-42"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from gpuops.errors import StateDamaged
from gpuops.model.stored import stored_name
from gpuops.plan.core.steps import EndTurn, HostStep, HostTask, Step, VcenterSetting

Recorded = Step | HostStep | HostTask | EndTurn | VcenterSetting
"""The steps whose intent a journal records."""


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    """Return one adapter for each kind, by stored name: several kinds have the same fields."""
    return {stored_name(kind): TypeAdapter(kind) for kind in get_args(Recorded)}


def dump_step(step: Recorded) -> dict[str, Any]:
    kind = stored_name(type(step))
    return {kind: _adapters()[kind].dump_python(step, mode="json")}


def load_step(body: Mapping[str, Any]) -> Recorded:
    """Return the step that `dump_step` wrote. Raises StateDamaged."""
    try:
        [(kind, fields)] = body.items()
        step: Recorded = _adapters()[kind].validate_python(fields)
        return step
    except (ValidationError, ValueError, KeyError) as error:
        raise StateDamaged(
            f"the journal holds a step that this version cannot read: {str(body)[:80]}",
            hint="use the gpuops that wrote it, or a later one",
        ) from error
