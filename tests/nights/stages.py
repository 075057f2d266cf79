"""Stages: what the engine is doing at a moment of a night, told by what it asks of vCenter and writes to its journal.

The engine is not asked: each call of its port to vCenter, and each kind of record, is of one stage; `test_coverage.py`
holds that none is left out. A lease is written by the same `submit` as any change; its op id tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final

from gpuops.execute.journal.record import Kind


class Stage(StrEnum):
    """What the engine does."""

    LOGIN = "login"
    LOOK = "look"
    INTEND = "intend"
    SUBMIT = "submit"
    WAIT = "wait"
    ADOPT = "adopt"
    SETTLE = "settle"
    LEASE = "lease write"
    JOURNAL = "journal write"
    """Any record that is neither an intent nor a settlement."""
    NONE = "no run"
    """No process of ours is at work."""


OF_CALLS: Final[Mapping[str, Stage]] = {
    "inventory": Stage.LOOK,
    "observe": Stage.LOOK,
    "with_config_targets": Stage.LOOK,
    "with_tags": Stage.LOOK,
    "with_drs": Stage.LOOK,
    "lacking": Stage.LOOK,
    "lacking_on_clusters": Stage.LOOK,
    "no_way_in": Stage.LOOK,
    "defined_attributes": Stage.LOOK,
    "folder_at": Stage.LOOK,
    "submit": Stage.SUBMIT,
    "define_attribute": Stage.SUBMIT,
    "create_vm": Stage.SUBMIT,
    "clone_vm": Stage.SUBMIT,
    "adopt": Stage.ADOPT,
    "wait": Stage.WAIT,
    "wait_for_power": Stage.WAIT,
    "wait_for_guest": Stage.WAIT,
}
OF_RECORDS: Final[Mapping[Kind, Stage]] = {
    **dict.fromkeys(Kind, Stage.JOURNAL),
    Kind.INTENT: Stage.INTEND,
    Kind.SETTLED: Stage.SETTLE,
}

LEASE_OP: Final = "gpuops-lease-"


class Stages:
    """The stage that the run at work is in; `entered` is told each one as it begins, with the VM that it is about."""

    def __init__(self, entered: Callable[[Stage, str], None] = lambda stage, vm: None) -> None:
        self.now = Stage.NONE
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


class Staged:
    """A vCenter whose calls enter their stages."""

    def __init__(self, vcenter: Any, stages: Stages) -> None:
        self._vcenter = vcenter
        self._stages = stages

    def __getattr__(self, name: str) -> Any:
        found, stage = getattr(self._vcenter, name), OF_CALLS.get(name)
        if stage is None:
            return found
        if name == "wait":
            return lambda *args: self._waited(found(*args))

        def call(*args: Any, **more: Any) -> Any:
            is_lease = stage is Stage.SUBMIT and str(args[-1]).startswith(LEASE_OP)
            with self._stages.within(Stage.LEASE if is_lease else stage, getattr(args[0], "vm", "") if args else ""):
                return found(*args, **more)

        return call

    def _waited(self, ends: Iterator[Any]) -> Iterator[Any]:
        """What the engine does with an end, between two of them, is not waiting."""
        while True:
            with self._stages.within(Stage.WAIT):
                end = next(ends, None)
            if end is None:
                return
            yield end
