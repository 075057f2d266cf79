"""Stages: what the engine is doing at a moment of a night, told by what it asks of vCenter and writes to its journal.

The engine is not asked. A stage is a call of its port to vCenter, a submit of one kind of step, or an append of one
kind of record: the kinds are those of gpuops itself, so that a new one is a new stage. `test_coverage.py` holds that no
call of the port is left out. A lease is written by the same `submit` as any change; its op id tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, get_args

from gpuops.execute.journal.record import Kind
from gpuops.plan.core.steps import VcenterStep

Stage = str
LOGIN: Final[Stage] = "login"
LOOK: Final[Stage] = "look"
WAIT: Final[Stage] = "wait"
ADOPT: Final[Stage] = "adopt"
LEASE: Final[Stage] = "lease write"
DEFINE: Final[Stage] = "set up"
"""What makes VMs and custom attributes: no night does."""
NO_RUN: Final[Stage] = "no run"
"""No process of ours is at work."""

SUBMITS: Final[Mapping[type[Any], Stage]] = {kind: f"submit {kind.__name__}" for kind in get_args(VcenterStep)}
RECORDS: Final[Mapping[Kind, Stage]] = {kind: f"write {kind.value}" for kind in Kind}

SUBMIT: Final = "submit"
OF_CALLS: Final[Mapping[str, Stage]] = {
    "inventory": LOOK,
    "observe": LOOK,
    "with_config_targets": LOOK,
    "with_tags": LOOK,
    "with_counters": LOOK,
    "samples": LOOK,
    "with_drs": LOOK,
    "with_creation": LOOK,
    "has_power_task_near": LOOK,
    "lacking": LOOK,
    "lacking_on_objects": LOOK,
    "networks": LOOK,
    "no_way_in": LOOK,
    "defined_attributes": LOOK,
    "check_attribute_names": LOOK,
    "folder_at": LOOK,
    SUBMIT: SUBMIT,
    "define_attribute": DEFINE,
    "find_task": ADOPT,
    "started_by_this_login": ADOPT,
    "started_by_others": LOOK,
    "wait": WAIT,
    "withdraw": WAIT,
    "wait_for_power": WAIT,
    "wait_for_guest": WAIT,
    "wait_for_change": WAIT,
}
"""By call of the port; a submit is of the stage of its step."""

STAGES: Final[tuple[Stage, ...]] = (LOGIN, LOOK, *SUBMITS.values(), LEASE, WAIT, ADOPT, *RECORDS.values())
"""All that count."""

LEASE_OP: Final = "gpuops-lease-"


class Stages:
    """The stage of the current run; `entered` is called with each stage as it begins, and with its VM."""

    def __init__(self, entered: Callable[[Stage, str], None] = lambda stage, vm: None) -> None:
        self.now = NO_RUN
        self._entered = entered

    @contextmanager
    def within(self, stage: Stage, vm: str = "") -> Iterator[None]:
        """A run is in this stage meanwhile; a look that belongs to a submit or to a wait is theirs."""
        before, self.now = self.now, stage
        try:
            self._entered(stage, vm)
            yield
        finally:
            self.now = before

    @property
    def submits(self) -> bool:
        """Whether a request for a change is under way."""
        return self.now.startswith(SUBMIT) or self.now == LEASE


class Staged:
    """A vCenter whose calls enter their stages."""

    def __init__(self, vcenter: Any, stages: Stages) -> None:
        self._vcenter = vcenter
        self._stages = stages

    def __getattr__(self, name: str) -> Any:
        attribute, stage = getattr(self._vcenter, name), OF_CALLS.get(name)
        if stage is None:
            return attribute
        if name == "wait":
            return lambda *args: self._wait_for_ends(attribute(*args))
        if name == SUBMIT:
            return self._submit

        def call(*args: Any, **keywords: Any) -> Any:
            with self._stages.within(stage, getattr(args[0], "vm", "") if args else ""):
                return attribute(*args, **keywords)

        return call

    def _submit(self, step: VcenterStep, inventory: Any, op_id: str) -> Any:
        stage = LEASE if op_id.startswith(LEASE_OP) else SUBMITS[type(step)]
        with self._stages.within(stage, step.vm):
            return self._vcenter.submit(step, inventory, op_id)

    def _wait_for_ends(self, ends: Iterator[Any]) -> Iterator[Any]:
        """What the engine does with an end, between two of them, is not waiting."""
        while True:
            with self._stages.within(WAIT):
                end = next(ends, None)
            if end is None:
                return
            yield end
