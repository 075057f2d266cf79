"""What `gpuops place` says of vMotions that would make room: never of who does not run, and it comes true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.steps import RelocateVm
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.plan.queue.place import Place
from tests.plan.moving.worlds import after, world
from tests.plan.snapshots import catalog

WHOLE = Workload("asked", 4, 8192, "a40-48q")
TWO_HALVES = ([[8]], [[8, 8]])
"""The one VM of esx-01 has room on esx-02."""


def suggestions(now: Inventory, *workloads: Workload, **options: Any) -> list[str | None]:
    """For each workload what moves would make room for it; None = it has a place."""
    answers = Place(workloads, **options).placements(now, catalog()).answers
    return [answer.moves if isinstance(answer, Refusal) else None for answer in answers]


def test_the_move_is_named_and_makes_room() -> None:
    now = world(*TWO_HALVES)
    assert suggestions(now, WHOLE) == ["after vMotion of vm-1-1-1 to esx-02 it fits on esx-01"]
    moved = after([RelocateVm("vm-100", now.find_host("esx-02").ref)], now)
    assert suggestions(moved, WHOLE) == [None]


def test_as_few_moves_as_do() -> None:
    now = world([[8, 8]], [[8, 8]], [[24]])
    words = "after vMotion of vm-1-1-1 to esx-02, then of vm-1-1-2 to esx-02 it fits on esx-01"
    assert suggestions(now, WHOLE) == [words]


def test_each_is_told_what_helps_it_alone() -> None:
    now = world(*TWO_HALVES)
    first, second = suggestions(now, replace(WHOLE, name="a"), replace(WHOLE, name="b"))
    assert first == second == "after vMotion of vm-1-1-1 to esx-02 it fits on esx-01"


@pytest.mark.parametrize("power", [PowerState.SUSPENDED, PowerState.OFF])
def test_who_does_not_run_is_not_moved(power: PowerState) -> None:
    now = world([[8]], [[8] * 4])
    stopped = now.with_vm(replace(now.vms["vm-100"], power=power))
    assert suggestions(stopped, WHOLE) == ([None] if power is PowerState.OFF else [""])


def test_who_is_asked_for_is_not_moved() -> None:
    now = world([[]], [[8] * 5])
    small = Workload("small", 4, 8192, "a40-8q", priority=1, host="esx-01")
    assert suggestions(now, WHOLE, small) == [None, ""], "there would be room for it on esx-02"


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (replace(world(*TWO_HALVES), hot_migrate_enabled=False), "vMotion of vGPUs is switched off"),
        (world([[8] * 5], [[8] * 5]), "no host has room for so many"),
        (world(*[[[8]]] * 33, *[[[8, 8]]] * 33), "a large fleet is for `gpuops defrag`"),
    ],
)
def test_nothing_is_said_where_nothing_is_known(now: Inventory, why: str) -> None:
    assert suggestions(now, WHOLE) == [""], why


def test_of_whole_gpus_and_groups_nothing_is_said() -> None:
    now = world(*TWO_HALVES)
    assert suggestions(now, Workload("given", 4, 8192, gpus=1)) == [""]
    pair = [replace(WHOLE, name=name, affinity="pair") for name in ("a", "b")]
    assert suggestions(now, *pair) == ["", ""]


def test_a_placed_request_keeps_its_place() -> None:
    now = world([[8]], [[8]], [[]])
    answers = Place((replace(WHOLE, priority=1), replace(WHOLE, name="next"))).placements(now, catalog()).answers
    placed = next(answer for answer in answers if isinstance(answer, Placed))
    assert placed.placement.host.name == "esx-03"
    (refused,) = (answer for answer in answers if isinstance(answer, Refusal))
    assert refused.moves == "after vMotion of vm-1-1-1 to esx-02 it fits on esx-01"
