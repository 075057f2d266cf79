"""Free slots on a GPU that has the GPU instances of a layout and no others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.advise.capacity import Slots, free_slots
from gpuops.advise.gpu_profiles import instances_of
from gpuops.model.devices.mig import LayoutForm, LayoutPart
from tests.advise.test_capacity import CATALOG, MIG, gpu

BALANCED = ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")
LAYOUTS = (
    ("4g.20gb", "3g.20gb"),
    ("4g.20gb", "1g.10gb", "1g.5gb", "1g.5gb"),
    ("3g.20gb", "2g.10gb", "2g.10gb"),
    ("3g.20gb", *["1g.5gb"] * 4),
    ("2g.10gb", "2g.10gb", "1g.10gb", "1g.5gb"),
    ("1g.5gb",) * 7,
)
DC = "nvidia_rtx_pro_6000_blackwell_dc-"


def room(key: str, instances: tuple[str, ...], holders: list[str], profile: str) -> Slots:
    return free_slots(replace(gpu(key, MIG), gpu_instances=instances), holders, profile, CATALOG)


def figures(key: str, instances: tuple[str, ...], holders: list[str], profile: str) -> tuple[int, int | None]:
    slots = room(key, instances, holders, profile)
    return slots.at_least, slots.at_most


@pytest.mark.parametrize(
    ("holders", "profile", "free"),
    [
        ([], "nvidia_h100-1-10c", 2),
        ([], "nvidia_h100-3-40c", 1),
        (["nvidia_h100-1-10c"], "nvidia_h100-1-10c", 1),
        (["nvidia_h100-1-10c"] * 2, "nvidia_h100-3-40c", 1),
        (["nvidia_h100-3-40c"], "nvidia_h100-3-40c", 0),
        ([], "nvidia_h100-4-40c", 0),
    ],
)
def test_a_vgpu_needs_an_instance_of_its_kind(holders: list[str], profile: str, free: int) -> None:
    assert figures("h100", BALANCED, holders, profile) == (free, free)


def test_why_there_is_no_slot() -> None:
    in_use = room("h100", BALANCED, ["nvidia_h100-3-40c"], "nvidia_h100-3-40c")
    assert in_use.because == "its 1 x 3g.40gb are in use"
    assert room("h100", BALANCED, [], "nvidia_h100-4-40c").because == "its layout has no 4g.40gb"


def test_instances_that_vgpus_share() -> None:
    instances = ("1g.24gb+gfx", "1g.24gb+gfx", "2g.48gb+gfx")
    name = "rtx-pro-6000"
    assert figures(name, instances, [], f"{DC}1-12q") == (4, 4)
    assert figures(name, instances, [f"{DC}1-12q"], f"{DC}1-12q") == (3, 3)
    assert figures(name, instances, [f"{DC}1-24q"], f"{DC}1-12q") == (2, 2)
    assert figures(name, instances, [f"{DC}1-24q"] * 2, f"{DC}1-12q") == (0, 0)


def test_more_than_the_layout_has_is_a_contradiction() -> None:
    assert room("h100", BALANCED, ["nvidia_h100-3-40c"] * 2, "nvidia_h100-1-10c").contradictory


@settings(max_examples=50)
@given(draws=st.data())
def test_a_layout_has_room_for_its_instances_and_no_others(draws: st.DataObject) -> None:
    """As vGPUs fill it in any order, the room for each kind is what is not used of it."""
    board = CATALOG.board("a100")
    assert board is not None
    instances = draws.draw(st.sampled_from(LAYOUTS), "layout")
    by_kind = {profile.mig_profile: profile.name for profile in board.profiles if profile.mig_backed}
    holders = draws.draw(st.permutations([by_kind[name] for name in instances]), "started")
    holders = holders[: draws.draw(st.integers(0, len(holders)), "of them")]
    for kind in ("4g.20gb", "3g.20gb", "2g.10gb", "1g.10gb", "1g.5gb"):
        free = Counter(instances)[kind] - Counter(holders)[by_kind[kind]]
        assert figures("a100", instances, holders, by_kind[kind]) == (free, free)


def test_instances_of_vgpus_that_share_them() -> None:
    board = CATALOG.board("rtx-pro-6000")
    assert board is not None
    series = LayoutPart(None, (), (("DC-1-12Q", 1), ("DC-1-12C", 1), ("DC-1-6Q", 1)))
    assert instances_of(series, LayoutForm.VGPUS, board) == ("1g.24gb+gfx", "1g.24gb+gfx"), "two sizes"
    part = LayoutPart(None, (), (("DC-1-12Q", 3), ("DC-2-48C", 1)))
    assert instances_of(part, LayoutForm.VGPUS, board) == ("1g.24gb+gfx", "1g.24gb+gfx", "2g.48gb+gfx")
