"""What `gpuops defrag` says of moves that pin their VM, and of what is proven of those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.model.devices.gpu import AssignmentPolicy
from gpuops.plan.moving.defrag import Defrag
from gpuops.report.document import as_values
from gpuops.report.layout import plain
from gpuops.report.vms.defrag_view import DefragDocument, FragmentedRecord, defrag_text
from tests.plan.moving.worlds import world
from tests.plan.snapshots import catalog

EMPTIEST_FIRST = replace(world([[24], []], [[], [24]], policy=AssignmentPolicy.PERFORMANCE), hot_migrate_enabled=False)


def test_a_pinned_move_is_told_with_what_it_costs() -> None:
    defrag = Defrag(powered_off=True).find_moves(EMPTIEST_FIRST, catalog())
    lines = plain(defrag_text(defrag)).splitlines()
    (move,) = [line.split() for line in lines if "powered off, pinned" in line]
    assert move == ["1", "vm-1-1-1", "esx-01", "esx-02", "0000:11:00.0", "powered", "off,", "pinned", "3"]
    assert sum(line.startswith("pinned: pciPassthruN.cfg.gpu-pci-id does not change") for line in lines) == 1
    (pinned_move,) = as_values(DefragDocument.made_of(defrag))["moves"]
    assert (pinned_move["pinned"], pinned_move["gpus"], pinned_move["gpus_known_by"]) == (
        True,
        ["0000:11:00.0"],
        "pinned to it",
    )


def test_a_move_that_needs_no_pin_has_none() -> None:
    defrag = Defrag(powered_off=True).find_moves(replace(world([[8]], [[8, 8]]), hot_migrate_enabled=False), catalog())
    assert "pinned" not in plain(defrag_text(defrag))
    assert [move.pinned for move in DefragDocument.made_of(defrag).moves] == [False]


@pytest.mark.parametrize(
    ("proven", "unpinned", "expected"),
    [
        (True, True, "no other moves free more for certain, and no fewer free as much"),
        (False, True, "no other moves without pins free more for certain, and no fewer free as much"),
        (False, False, "more cannot be free; whether fewer moves would do is not known"),
    ],
)
def test_proven_is_said_of_what_was_proven(proven: bool, unpinned: bool, expected: str) -> None:
    defrag = Defrag(powered_off=True).find_moves(EMPTIEST_FIRST, catalog())
    assert expected in plain(defrag_text(replace(defrag, proven=proven, proven_unpinned=unpinned)))


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (1, "cannot use: 28.8 GiB now, 9.6 GiB after 1 move; no other moves leave less for certain; "),
        (1, "whole GPUs free: 0 now, 1 then"),
    ],
)
def test_a_budget_says_how_much_memory_becomes_usable(budget: int, expected: str) -> None:
    defrag = Defrag(budget=budget).find_moves(world([[8, 8]], [[8], [24, 24]]), catalog())
    assert expected in plain(defrag_text(defrag))
    assert DefragDocument.made_of(defrag).fragmented == FragmentedRecord(29491, 9830)


def test_a_budget_that_finds_no_moves_says_so() -> None:
    defrag = Defrag(budget=3).find_moves(world([[8]], [[24, 24]]), catalog())
    assert "26.7 GiB now; no moves were found that make more of it usable" in plain(defrag_text(defrag))
