"""GPUs on which several vGPUs share a GPU instance (RTX PRO in MIG mode): a slot is promised only if it exists however
the running vGPUs lie. VMs that stop may leave those that run in any number of instances.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.advise.capacity import free_slots
from gpuops.model.devices.gpu import VgpuMode
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
from tests.advise.test_capacity import CATALOG, gpu

MIG = VgpuMode.MULTI_INSTANCE
PREFIX = "nvidia_rtx_pro_6000_blackwell_dc-"
THREE_OF_17 = [f"{PREFIX}1-3q"] * 3
"""What runs of 17 vGPUs, eight to an instance, after 14 were stopped."""
SHARING = sorted(
    {each.key for each in CATALOG.boards for profile in each.profiles if (profile.max_per_gpu_instance or 1) > 1}
)
"""Every GPU model of the catalogue that vSphere names such profiles of."""


def room(running: list[str], profile: str, starts: tuple[int | None, ...] = ()) -> tuple[int, int | None]:
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
    assert room(THREE_OF_17, profile) == unknown
    if (profile, starts) != ("2-48q", (3, 6, 9)):
        assert room(THREE_OF_17, profile, starts) == (exact, exact)


def test_a_vgpu_of_unknown_start_may_share_with_those_of_known_start() -> None:
    assert room(THREE_OF_17, "1-24q", (0, 0, None)) == (2, 3)
    assert room([f"{PREFIX}1-3q"] * 9, "1-24q", (*[0] * 8, None)) == (2, 2), "the instance at 0 is full"


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
