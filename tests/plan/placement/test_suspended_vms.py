"""Whatever of a host's desktops a night suspends, they all fit back in the order that gpuops resumes them in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.catalog import load
from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.placement.seating import Room
from gpuops.plan.placement.suspended_vms import return_check, return_order
from tests.execute.small_vcenter import SLOTS, World, desktop, small_world

CATALOG = load(profiles=SLOTS)
DESKTOP_PROFILES = ("nvidia_a40-12q", "nvidia_a40-24q", "nvidia_a40-48q")

Gpu = tuple[str, tuple[bool, ...]]
"""A GPU's profile, and for each desktop on it whether the night suspends it."""


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    profile = draw(st.sampled_from(DESKTOP_PROFILES))
    return profile, tuple(draw(st.lists(st.booleans(), max_size=SLOTS[profile])))


hosts = st.lists(gpus(), min_size=1, max_size=5)
policies = st.sampled_from(AssignmentPolicy)


def world_of(layout: list[Gpu], policy: AssignmentPolicy) -> tuple[World, list[list[str]]]:
    """The world before the night, and which desktops run on which GPU."""
    world = small_world()
    host = world.hosts["host-1"]
    template = host.gpus[0]
    slots = tuple(replace(template, address=PciAddress(0, 0x10 + 8 * index, 0, 0)) for index in range(len(layout)))
    world.hosts = {"host-1": replace(host, gpus=slots, assignment_policy=policy, memory_mib=4 * 1024 * 1024)}
    world.vms, world.on_gpu = {}, {}
    on_gpu: list[list[str]] = []
    for index, (profile, desktops) in enumerate(layout):
        on_gpu.append([])
        for _ in desktops:
            vm = desktop(len(world.vms) + 1, profile, "host-1")
            world.vms[vm.ref] = vm
            world.on_gpu[vm.ref] = ("host-1", index)
            on_gpu[index].append(vm.ref)
    return world, on_gpu


def suspend_all(world: World, layout: list[Gpu], on_gpu: list[list[str]]) -> list[Vm]:
    return [
        world.vms[ref]
        for (_, gpu_vms), refs in zip(layout, on_gpu, strict=True)
        for suspended_vm, ref in zip(gpu_vms, refs, strict=True)
        if suspended_vm
    ]


def resume(vm: Vm, gpus: list[list[Vm]], policy: AssignmentPolicy) -> bool:
    """The host's own choice, written from the vendor's words: emptiest GPU, or fullest, that still takes the VM."""
    [profile] = vm.profiles
    takes = [gpu for gpu in gpus if len(gpu) < SLOTS[profile] and all(gpu_vm.profiles == vm.profiles for gpu_vm in gpu)]
    if not takes:
        return False
    emptiest = policy is AssignmentPolicy.PERFORMANCE
    min(takes, key=lambda gpu: len(gpu) if emptiest else -len(gpu)).append(vm)
    return True


@pytest.mark.long
@settings(max_examples=400)
@given(layout=hosts, policy=policies)
def test_every_suspended_desktop_finds_its_gpu_again(layout: list[Gpu], policy: AssignmentPolicy) -> None:
    world, on_gpu = world_of(layout, policy)
    suspended_vms = suspend_all(world, layout, on_gpu)
    for vm in suspended_vms:
        world._set_power(vm.ref, PowerState.SUSPENDED)
    running = [[world.vms[ref] for ref in refs if world.vms[ref].power is PowerState.ON] for refs in on_gpu]
    seeds, later_vms = return_order(suspended_vms, world.snapshot(), CATALOG)
    assert {vm.ref for vm in (*seeds, *later_vms)} == {vm.ref for vm in suspended_vms}
    for vm in (*seeds, *later_vms):
        assert resume(vm, running, policy), f"{vm.name} ({vm.profiles[0]}) is stranded"


@pytest.mark.long
@settings(max_examples=200)
@given(layout=hosts, policy=policies)
def test_the_way_back_of_what_ran_is_never_doubted(layout: list[Gpu], policy: AssignmentPolicy) -> None:
    world, on_gpu = world_of(layout, policy)
    ask = return_check(world.snapshot(), CATALOG, Room(CATALOG, certain=False))
    assert ask(suspend_all(world, layout, on_gpu)) == ()


def test_the_naive_order_would_strand_one() -> None:
    """What the order guards against, on the smallest host that shows it."""
    layout: list[Gpu] = [("nvidia_a40-24q", (True, True)), ("nvidia_a40-12q", (True,))]
    world, on_gpu = world_of(layout, AssignmentPolicy.PERFORMANCE)
    suspended_vms = suspend_all(world, layout, on_gpu)
    empty: list[list[Vm]] = [[], []]
    assert [resume(vm, empty, AssignmentPolicy.PERFORMANCE) for vm in suspended_vms] == [True, True, False]


def test_a_host_that_lost_a_gpu_is_not_a_way_back() -> None:
    layout: list[Gpu] = [("nvidia_a40-48q", (True,)), ("nvidia_a40-24q", (True,))]
    world, on_gpu = world_of(layout, AssignmentPolicy.PERFORMANCE)
    suspended_vms = suspend_all(world, layout, on_gpu)
    host = world.hosts["host-1"]
    world.hosts["host-1"] = replace(host, gpus=host.gpus[:1])
    refusals = return_check(world.snapshot(), CATALOG, Room(CATALOG, certain=False))(suspended_vms)
    assert refusals
    assert str(refusals[0]).endswith("needs 1 slot, 0 there")
