"""Free slots in MIG mode: on GPUs with a fixed layout, and where several vGPUs share a GPU instance."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.advise.capacity import Slots, free_slots
from gpuops.advise.gpu_profiles import instances_of
from gpuops.model.devices.mig import LayoutForm, LayoutPart
from gpuops.sim.state.board import GpuMode, board
from gpuops.sim.state.gpu_admission import (
    Deviation,
    GpuLoad,
    NotAdmitted,
    RunningVgpu,
    StartOrder,
    VgpuPolicy,
    WantedVgpu,
    admit,
)
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


PREFIX = "nvidia_rtx_pro_6000_blackwell_dc-"
THREE_OF_17 = [f"{PREFIX}1-3q"] * 3
"""What runs of 17 vGPUs, eight to an instance, after 14 were stopped."""
SHARING = sorted(
    {each.key for each in CATALOG.boards for profile in each.profiles if (profile.max_per_gpu_instance or 1) > 1}
)
"""Every GPU model of the catalogue that vSphere names such profiles of."""


def slots_beside(running: list[str], profile: str, starts: tuple[int | None, ...] = ()) -> tuple[int, int | None]:
    slots = free_slots(gpu("rtx-pro-6000", MIG), running, f"{PREFIX}{profile}", CATALOG, starts)
    return slots.at_least, slots.at_most


@pytest.mark.parametrize(
    ("profile", "unknown", "exact"),
    [("2-48q", (0, 1), 0), ("1-24q", (1, 3), 1), ("1-3q", (29, 29), 29), ("1-3a", (8, 29), 29), ("4-96q", (0, 0), 0)],
)
@pytest.mark.parametrize("starts", [(0, 3, 6), (0, 1, 2), (3, 6, 9)], ids=str)
def test_what_is_left_beside_three_that_may_share(
    profile: str, unknown: tuple[int, int], exact: int, starts: tuple[int, ...]
) -> None:
    """Starts that the catalogue does not know, such as 1 and 2, still tell how many instances there are."""
    assert slots_beside(THREE_OF_17, profile) == unknown
    if (profile, starts) != ("2-48q", (3, 6, 9)):
        assert slots_beside(THREE_OF_17, profile, starts) == (exact, exact)


def test_a_vgpu_of_unknown_start_may_share_with_those_of_known_start() -> None:
    assert slots_beside(THREE_OF_17, "1-24q", (0, 0, None)) == (2, 3)
    assert slots_beside([f"{PREFIX}1-3q"] * 9, "1-24q", (*[0] * 8, None)) == (2, 2), "the instance at 0 is full"


def test_what_cannot_all_run_there_is_a_contradiction() -> None:
    slots = free_slots(gpu("rtx-pro-6000", MIG), [f"{PREFIX}2-48q"] * 3, f"{PREFIX}1-3q", CATALOG)
    assert slots.contradictory


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("key", [*SHARING, "h100", "a30"])
@settings(max_examples=60)
@given(draws=st.data())
def test_what_is_promised_starts_however_they_lie(key: str, draws: st.DataObject) -> None:
    """VMs come and go on a simulated GPU, which may choose other starts than the documented ones."""
    model = board(key)
    names = [type_.name for type_ in model.types_in(GpuMode.MULTI_INSTANCE) if type_.name]
    few = draws.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True), "profiles")
    deviation = Deviation(starts=draws.draw(st.sampled_from(list(StartOrder)), "start order"))
    load = GpuLoad("0000:3b:00.0", model, GpuMode.MULTI_INSTANCE, serves_vgpus=True)
    for number in range(draws.draw(st.integers(1, 30), "VMs")):
        seats = admit(f"vm-{number}", [WantedVgpu(draws.draw(st.sampled_from(few), "profile"))], [load],
                      VgpuPolicy.PERFORMANCE, deviation)  # fmt: skip
        if not isinstance(seats, NotAdmitted):
            load = replace(load, seats=(*load.seats, *seats))
    remaining = draws.draw(st.sets(st.sampled_from([seat.vm for seat in load.seats])), "still run")
    load = replace(load, seats=tuple(seat for seat in load.seats if seat.vm in remaining))
    running = [seat.type.name for seat in load.seats]
    for name in draws.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4), "asked for"):
        slots = free_slots(gpu(key, MIG), running, name, CATALOG)
        exact = free_slots(gpu(key, MIG), running, name, CATALOG, tuple(seat.start for seat in load.seats))
        free = startable(name, load, deviation)
        assert slots.at_least <= free, f"{slots} of {name} beside {load.seats}"
        assert slots.at_most is not None and free <= slots.at_most, f"{slots} of {name} beside {load.seats}"
        assert (exact.at_least, exact.at_most) == (free, free), f"{exact} of {name} beside {load.seats}"


def startable(name: str, load: GpuLoad, deviation: Deviation) -> int:
    """How many of the profile the simulated GPU lets start, one after another."""
    count = 0
    while True:
        seats: tuple[RunningVgpu, ...] | NotAdmitted = admit(
            f"more-{count}", [WantedVgpu(name)], [load], VgpuPolicy.PERFORMANCE, deviation
        )
        if isinstance(seats, NotAdmitted):
            return count
        load = replace(load, seats=(*load.seats, *seats))
        count += 1
