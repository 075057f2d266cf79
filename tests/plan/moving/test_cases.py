"""The runner of `cases/defrag`: which VMs move, what is free then, and why the others stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpuops.errors import GpuopsError
from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.moving.defrag import Defrag, Defragmentation
from tests.plan.case import Words, case_of, compare, read_cases, with_changes
from tests.plan.moving.worlds import after, free, world
from tests.plan.snapshots import catalog


@dataclass(frozen=True)
class DefragCase:
    name: str
    hosts: Mapping[str, list[list[int]]]
    """esx-01, esx-02 ...: for each GPU (an A40) the sizes in GiB of the vGPUs on it."""
    expect: Words
    request: Words = field(default_factory=dict)
    """Options of `defrag`."""
    assignment: str = "consolidation"
    mode: str = "sameSize"
    change: Mapping[str, Words] = field(default_factory=dict)
    """As in every case; a VM is called vm-HOST-GPU-NUMBER, counted from 1."""

    def __str__(self) -> str:
        return self.name


CASES = read_cases("defrag", DefragCase)


def inventory_of(case: DefragCase) -> Inventory:
    assert list(case.hosts) == [f"esx-{number:02}" for number in range(1, len(case.hosts) + 1)]
    policy = AssignmentPolicy(case.assignment)
    return with_changes(world(*case.hosts.values(), policy=policy, mode=VgpuMode(case.mode)), case.change)


def plan_defrag(case: DefragCase, inventory: Inventory) -> Defragmentation:
    return Defrag(**case.request).find_moves(inventory, catalog())


def check(case: DefragCase) -> None:
    inventory = inventory_of(case)
    try:
        defrag = plan_defrag(case, inventory)
    except GpuopsError as error:
        assert {"error": f"{type(error).__name__}: {error.message}"} == case.expect
        return
    actual: dict[str, Any] = {
        "moves": [f"{move.vm.name}: {move.source.name} -> {move.target.name}" for move in defrag.moves],
        "ways": [str(move.way) for move in defrag.moves],
        "free": {"before": defrag.before, "after": defrag.after, "at_most": defrag.bound},
        "proven": defrag.proven,
        "fragmented_gib": [round(mib / 1024, 1) for mib in defrag.fragmented_mib or ()],
        "stays": {stay.vm.name: list(stay.reasons) for stay in defrag.stays},
        "unclear": {f"{gpu_stay.host.name} {gpu_stay.address}": gpu_stay.because for gpu_stay in defrag.unclear},
    }
    compare(actual, case.expect, {"moves", "stays", "unclear", "fragmented_gib"})
    if "profile" not in case.request and not defrag.unclear:
        assert free(after([move.step for move in defrag.moves], inventory)) == defrag.after


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: DefragCase) -> None:
    check(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.expect.get("proven")], ids=str)
def test_after_the_moves_nothing_more_can_be_freed(case: DefragCase) -> None:
    inventory = inventory_of(case)
    defrag = plan_defrag(case, inventory)
    second_plan = plan_defrag(case, after([move.step for move in defrag.moves], inventory))
    assert second_plan.after == defrag.after or "max_moves" in case.request


def test_a_wrong_key_is_refused() -> None:
    case = CASES[0]
    with pytest.raises(TypeError, match="inventory"):
        case_of(DefragCase, {"name": "x", "hosts": {}, "expect": {}, "inventory": "lab"})
    with pytest.raises(AssertionError, match="unknown expectations"):
        check(replace(case, expect={**case.expect, "move": []}))
    with pytest.raises(AssertionError, match="unknown changes"):
        check(replace(case, change={"vm": {}}))
    with pytest.raises(TypeError, match="most_moves"):
        check(replace(case, request={"most_moves": 1}))
