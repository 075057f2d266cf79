"""What never happens, over generated fleets and requests: a slot given twice, a second run that changes something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.advise.capacity import free_slots
from gpuops.advise.occupancy import gpu_states
from gpuops.errors import GpuopsError
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.devices.mig import arrangements
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Firmware, PowerState, Vm, pins_of
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.select import place
from gpuops.plan.placement.vm_demand import PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.vm_blockers import MoveMode, PowerPolicy
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, vm

PROFILES: Final = {
    ("a100", VgpuMode.MULTI_INSTANCE): ["grid_a100-1-5c", "grid_a100-1-10c", "grid_a100-2-10c", "grid_a100-3-20c"],
    ("a40", VgpuMode.SAME_SIZE): [
        "nvidia_a40-8q",
        "nvidia_a40-12q",
        "nvidia_a40-24c",
        "nvidia_a40-48q",
        "nvidia_a40-2b",
    ],
    ("l40s", VgpuMode.MIXED_SIZE): ["nvidia_l40s-4c", "nvidia_l40s-16q", "nvidia_l40s-24c"],
}
NAMES: Final = [name for names in PROFILES.values() for name in names]
FAST: Final = settings(max_examples=60)


@st.composite
def fleets(draw: st.DrawFn) -> Inventory:
    """Up to three hosts with two GPUs each, and VMs that want one to three vGPUs; some of them run."""
    hosts = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        board, mode = draw(st.sampled_from(sorted(PROFILES)))
        hosts.append(host(f"esx-{number}", gpu(FIRST, board, 0, mode), gpu(SECOND, board, 1, mode)))
    world = inventory(hosts, draw(st.lists(vms(len(hosts)), max_size=8, unique_by=lambda drawn: drawn.ref)))
    for guest_vm in list(world.vms.values()):
        if guest_vm.devices and draw(st.booleans()):
            world = start_vm(guest_vm, world)
    return world


@st.composite
def vms(draw: st.DrawFn, hosts: int) -> Vm:
    number = draw(st.integers(1, 99))
    devices = [f"vgpu {draw(st.sampled_from(NAMES))}"] * draw(st.integers(0, 3))
    drawn_vm = vm(number, f"vm-{number}", str(draw(st.integers(1, hosts))), *devices)
    return replace(
        drawn_vm,
        cpu_hot_add=draw(st.booleans()),
        cores_per_numa_node=draw(st.sampled_from([0, 8])),
        firmware=draw(st.sampled_from(list(Firmware))),
        memory_mib=draw(st.sampled_from([8192, 65536, 300000])),
        memory_reservation_mib=draw(st.sampled_from([0, 4096])),
        memory_locked=False,
        extra_config=draw(st.sampled_from([{}, {"pciPassthru.64bitMMIOSizeGB": "64", "x": "y"}])),
    )


@st.composite
def attachments(draw: st.DrawFn, world: Inventory) -> Attach:
    return Attach(
        vm=draw(st.sampled_from(sorted(vm.name for vm in world.vms.values()))),
        profile=draw(st.sampled_from([*NAMES, "a40-8q", "nonsense"])),
        count=draw(st.sampled_from([None, 1, 2, 3])),
        replace=draw(st.sampled_from([None, *NAMES])),
        add=draw(st.booleans()),
        move=draw(st.sampled_from([None, MoveMode.COLD])),
        pin=draw(st.sampled_from(list(PinPolicy))),
        numa=draw(st.sampled_from(list(NumaPolicy))),
        power=draw(st.sampled_from(list(PowerPolicy))),
        host=draw(st.sampled_from([None, *(esx.name for esx in world.hosts.values())])),
    )


def start_vm(vm: Vm, world: Inventory) -> Inventory:
    """The world with the VM running, where it may."""
    question = Wanted(vm, demands_of(vm.devices or (), pins_of(vm)), (vm.host or "",))
    if not isinstance(place(question, world, catalog()), Placement):
        return world
    return project(PowerOnVm(vm.ref, vm.host), world, catalog())


def plan_attach(request: Attach | Detach, world: Inventory) -> Plan:
    try:
        return request.plan(world, catalog(), world.taken_at)
    except GpuopsError:
        return Plan()


def carried_out(plan: Plan, world: Inventory) -> Inventory:
    if plan.feasible:
        for step in plan.steps:
            world = project(step, world, catalog())
    return world


def overfull(of: Host, world: Inventory) -> list[str]:
    """GPUs of a host that hold what no GPU can, as far as it is certain which vGPU is where."""
    lines = []
    for state in gpu_states(of, world, catalog()):
        certain = [tenant.profile for tenant in state.tenants if tenant.certain]
        profiles = [profile for name in certain if (profile := catalog().profile(name)) is not None]
        board = catalog().board_by_pci(state.gpu.vendor_id, state.gpu.device_id, state.gpu.subsystem_id)
        assert board is not None
        match state.gpu.vgpu_mode:
            case VgpuMode.MULTI_INSTANCE:
                assert board.mig is not None
                kinds = [kind for p in profiles if (kind := board.mig.profile(p.mig_profile or "")) is not None]
                fits = len(kinds) == len(profiles) and next(arrangements(kinds, board.mig), None) is not None
            case VgpuMode.SAME_SIZE:
                sizes = {profile.framebuffer_mib for profile in profiles}
                fits = len(sizes) < 2 and len(profiles) <= min([p.max_per_gpu for p in profiles], default=0)
            case _:
                fits = sum(profile.framebuffer_mib for profile in profiles) <= board.framebuffer_mib
        if profiles and not fits:
            lines.append(f"{of.name} {state.gpu.address}: {certain}")
    return lines


@FAST
@given(st.data())
def test_a_gpu_is_never_given_out_twice(draws: st.DataObject) -> None:
    world = draws.draw(fleets().filter(lambda drawn: bool(drawn.vms)))
    for _ in range(4):
        world = carried_out(plan_attach(replace(draws.draw(attachments(world)), power=PowerPolicy.ON), world), world)
        assert [line for esx in world.hosts.values() for line in overfull(esx, world)] == []


@pytest.mark.long
@FAST
@given(st.data())
def test_a_finished_plan_has_nothing_left_to_do(draws: st.DataObject) -> None:
    world = draws.draw(fleets().filter(lambda drawn: bool(drawn.vms)))
    request = draws.draw(attachments(world))
    plan = plan_attach(request, world)
    if not plan.feasible or not plan.steps:
        return
    second_plan = plan_attach(request, carried_out(plan, world))
    assert second_plan.rejections == ()
    assert second_plan.steps == ()


@FAST
@given(st.data())
def test_detach_undoes_attach(draws: st.DataObject) -> None:
    world = draws.draw(fleets().filter(lambda drawn: bool(drawn.vms)))
    request = replace(draws.draw(attachments(world)), replace=None, move=None, host=None)
    before = world.find_vm(request.vm)
    if before.devices or before.power is not PowerState.OFF:
        return
    after = carried_out(plan_attach(replace(request, power=PowerPolicy.REFUSE), world), world)
    undone = carried_out(plan_attach(Detach(vm=request.vm, all=True), after), after)
    assert undone.vms[before.ref] == before


@pytest.mark.long
@FAST
@given(st.data())
def test_a_second_attach_keeps_what_the_first_one_kept(draws: st.DataObject) -> None:
    world = draws.draw(fleets().filter(lambda drawn: bool(drawn.vms)))
    name = draws.draw(st.sampled_from(sorted(vm.name for vm in world.vms.values())))
    before = world.find_vm(name)
    if before.devices:
        return
    for _ in range(3):
        request = replace(draws.draw(attachments(world)), vm=name, power=PowerPolicy.CYCLE, move=None, host=None)
        world = carried_out(plan_attach(request, world), world)
    undone = carried_out(plan_attach(Detach(vm=name, all=True), world), world)
    assert undone.vms[before.ref] == before


@FAST
@given(st.data())
def test_whatever_is_asked_only_our_own_errors_are_raised(draws: st.DataObject) -> None:
    world = draws.draw(fleets().filter(lambda drawn: bool(drawn.vms)))
    text = st.sampled_from([None, "", "0000:3b:00.0", "10de:26b9", "dynamic", "a40-8q", "ml", "moid:vm-1", "/", "%"])
    texts = st.lists(text.filter(lambda word: word is not None), max_size=2).map(tuple)
    vm_name = draws.draw(st.sampled_from([*(vm.name for vm in world.vms.values()), "moid:", "uuid:", "/", ""]))
    kinds: dict[str, Any] = {
        "profile": draws.draw(text),
        "device": draws.draw(texts),
        "dynamic": draws.draw(st.booleans()),
        "label": draws.draw(text),
        "device_type": draws.draw(texts),
        "device_group": draws.draw(text),
        "count": draws.draw(st.sampled_from([None, -1, 0, 1, 99])),
    }
    for request in (Attach(vm_name, **kinds, replace=draws.draw(text)), Detach(vm_name, **kinds)):
        try:
            request.config_targets(world)
            request.vm_details(world)
            request.plan(world, catalog(), world.taken_at)
        except GpuopsError as error:
            assert error.message


def test_the_rules_of_the_property_can_fail() -> None:
    """A check of the checker: two vGPUs of different sizes on one GPU in same-size mode are seen."""
    esx = host("esx-1", replace(gpu(FIRST, "a40"), vms=("vm-1", "vm-2")))
    on = PowerState.ON
    world = inventory(
        [esx], [vm(1, "a", "1", "vgpu nvidia_a40-8q", power=on), vm(2, "b", "1", "vgpu nvidia_a40-12q", power=on)]
    )
    assert overfull(esx, world)
    assert free_slots(esx.gpus[0], ["nvidia_a40-8q"], "nvidia_a40-12q", catalog()).at_most == 0
