"""Fragmentation: what of a GPU's free memory the site's mix can use, and what no VM of it ever will."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.advise.fragmentation import Fragmentation, mix_of
from gpuops.advise.occupancy import GpuState, Tenant
from gpuops.model.gpu import VgpuMode
from gpuops.model.vm import Vm
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, vm

GIB = 1024
SMALL, LARGE, WHOLE = "nvidia_a40-8q", "nvidia_a40-24q", "nvidia_a40-48q"


def asking(*profiles: str, memory_gib: int = 1) -> list[Vm]:
    return [
        vm(number, f"vm-{number}", "1", f"vgpu {profile}", memory_mib=memory_gib * GIB)
        for number, profile in enumerate(profiles)
    ]


def holding(*profiles: str, address: str = FIRST) -> GpuState:
    return GpuState(gpu(address, "a40"), tuple(Tenant(f"x-{n}", f"x-{n}", p) for n, p in enumerate(profiles)))


def useless_gib(states: list[GpuState], vms: list[Vm], memory_gib: int | None = None) -> float:
    measure = Fragmentation(mix_of(vms, catalog()), catalog())
    return measure.useless_mib(states, None if memory_gib is None else memory_gib * GIB) / GIB


@pytest.mark.parametrize(
    ("held", "asked", "useless"),
    [
        ((), (SMALL,), 0),
        ((), (WHOLE,), 0),
        ((SMALL,), (SMALL,), 0),
        ((SMALL,), (LARGE,), 40),
        ((SMALL,), (WHOLE,), 40),
        ((LARGE,), (SMALL,), 24),
        ((LARGE,), (LARGE,), 0),
        # a third asks for 8 GiB in 8 GiB (no use lost), two thirds by memory for 24 GiB (all of it is lost)
        ((SMALL,), (SMALL, SMALL, SMALL, LARGE, LARGE), 40 * 2 / 3),
        ((WHOLE,), (SMALL, LARGE), 0),
    ],
)
def test_what_is_useless(held: tuple[str, ...], asked: tuple[str, ...], useless: float) -> None:
    assert useless_gib([holding(*held)], asking(*asked)) == pytest.approx(useless)


def test_memory_beside_the_gpus_limits_what_they_are_worth() -> None:
    vms = asking(SMALL, memory_gib=32)
    both = [holding(), holding(address=SECOND)]
    assert useless_gib(both, vms, 12 * 32) == 0
    assert useless_gib(both, vms, 5 * 32) == 96 - 5 * 8
    assert useless_gib(both, vms, -1) == 96


def test_only_what_the_site_knows_counts() -> None:
    template = replace(vm(9, "golden", "1", f"vgpu {WHOLE}"), template=True)
    unknown = vm(8, "new", "1", "vgpu nvidia_z9-8q")
    assert useless_gib([holding(SMALL)], [*asking(SMALL), template, unknown]) == 0
    assert useless_gib([holding(SMALL)], []) == 0
    other_board = GpuState(gpu(SECOND, "l40s", 0, VgpuMode.MIXED_SIZE))
    assert useless_gib([other_board], asking(WHOLE)) == 0


def test_a_vm_with_several_asks_for_each_with_its_share_of_the_memory() -> None:
    two = vm(1, "two", "1", f"vgpu {WHOLE}", f"vgpu {WHOLE}", memory_mib=200 * GIB)
    [shape] = mix_of([two], catalog())["a40"]
    assert (shape.memory_mib, shape.weight) == (100 * GIB, 1)


def test_what_was_counted_for_one_mode_is_not_taken_for_another() -> None:
    measure = Fragmentation(mix_of(asking(LARGE), catalog()), catalog())
    assert measure.useless_mib([holding(SMALL)], None) == 40 * GIB
    mixed = replace(holding(SMALL), gpu=gpu(FIRST, "a40", 0, VgpuMode.MIXED_SIZE))
    assert measure.useless_mib([mixed], None) < 40 * GIB
