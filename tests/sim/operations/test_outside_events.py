"""What happens to VMs, hosts and logins of a simulated vCenter without any client."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.operations.vms import power
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from gpuops.sim.scenario.build import build
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.host_state import GpuFault
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World


@pytest.fixture
def world() -> World:
    return build("lab")


def find_entity(world: World, kind: str, name: str) -> Any:
    return next(entity for entity in world.by_type(kind) if entity.name == name)


def power_of(vm: Any) -> Power:
    power: Power = vm.state.power
    return power


def strike(world: World, happening: str, *targets: Any, for_s: float = 0.0) -> None:
    OUTSIDE_EVENTS[happening].strike(world, targets, Rule(Effect.HAPPEN, happening=happening, for_s=for_s))


def test_vsphere_ha_starts_a_vm_anew_without_a_task(world: World) -> None:
    vm = find_entity(world, "VirtualMachine", "vdi-07")
    with world.lock:
        booted = vm.state.boot_time
        tasks = len(list(world.tasks.readable()))
        world.clock.advance(60)
        strike(world, "vm.restarted_by_ha", vm)
        assert vm.state.power is Power.ON and vm.state.boot_time != booted
        assert len(list(world.tasks.readable())) == tasks


def test_a_guest_that_ignores_a_shutdown_goes_on_until_it_listens_again(world: World) -> None:
    vm = find_entity(world, "VirtualMachine", "vdi-07")
    with world.lock:
        strike(world, "vm.ignores_shutdown", vm, for_s=600)
        power.shut_down_guest(vm, somebody(world, "ShutdownGuest"))
        world.clock.advance(590)
        assert power_of(vm) is Power.ON
        world.clock.advance(20)
        power.shut_down_guest(vm, somebody(world, "ShutdownGuest"))
        world.clock.advance(60)
        assert power_of(vm) is Power.OFF


def test_vgpu_types_disappear_with_a_driver_and_come_back_with_it(world: World) -> None:
    host = find_entity(world, "HostSystem", "esx-02.lab")

    def types() -> set[str]:
        return {type_.name for gpu in host.state.gpus for type_ in gpu.board.types}

    with world.lock:
        strike(world, "host.other_driver", host, for_s=3600)
        assert "nvidia_a40-8q" not in types() and "nvidia_a40-4q" in types()
        world.clock.advance(3601)
        assert "nvidia_a40-8q" in types()


def test_gpus_that_can_take_mixed_sizes_from_then_on(world: World) -> None:
    host = find_entity(world, "HostSystem", "esx-02.lab")
    with world.lock:
        strike(world, "gpu.mixed_size", host, for_s=60)
        modes = {gpu.mode for gpu in host.state.gpus if gpu.board.mixed_size}
        assert modes == {GpuMode.MIXED_SIZE}


def test_a_password_that_changes_is_refused_and_open_sessions_go_on(world: World) -> None:
    world.sessions.passwords["me"] = "mine"
    with world.lock:
        session = world.sessions.open("me", "en")
        strike(world, "password.changed", for_s=60)
        assert not world.sessions.accepts("me", "mine")
        assert session in list(world.sessions)
        world.clock.advance(61)
        assert world.sessions.accepts("me", "mine")


def test_a_lost_gpu_stays_listed_takes_nothing_and_is_back_after_a_boot(world: World) -> None:
    host = find_entity(world, "HostSystem", "esx-02.lab")
    with world.lock:
        host.state.gpus[0].faults = frozenset({GpuFault.CORRUPT_INFOROM})
        listed = len(host.state.gpus)
        strike(world, "gpu.lost", host)
        assert power_of(find_entity(world, "VirtualMachine", "vdi-07")) is Power.OFF, "it was on this GPU"
        assert host.state.gpus[0].faults == {GpuFault.CORRUPT_INFOROM, GpuFault.LOST}
        assert len(host.state.gpus) == listed
        strike(world, "host.crashed", host, for_s=60)
        world.clock.advance(61)
        assert host.state.gpus[0].faults == {GpuFault.CORRUPT_INFOROM}


def test_a_host_that_is_added_again_brings_its_vms_along_under_other_ids(world: World) -> None:
    host, vm = find_entity(world, "HostSystem", "esx-02.lab"), find_entity(world, "VirtualMachine", "vdi-07")
    names, seats, free_mib = {vm.name for vm in host.vms()}, vm.state.seats, vm.datastore().free_mib
    with world.lock:
        strike(world, "host.readded", host)
        readded_host, entered = (
            find_entity(world, "HostSystem", "esx-02.lab"),
            find_entity(world, "VirtualMachine", "vdi-07"),
        )
        assert readded_host.moid != host.moid and entered.moid != vm.moid
        assert {vm.name for vm in readded_host.vms()} == names
        assert power_of(entered) is Power.ON and len(entered.state.seats) == len(seats)
        assert {seat.vm for seat in readded_host.seats()} >= {entered.moid} and vm.moid not in {
            s.vm for s in readded_host.seats()
        }
        assert entered.datastore().free_mib == free_mib
        assert world.find(vm.moid) is None and world.find(host.moid) is None
        power.suspend(entered, somebody(world, "SuspendVM_Task"))
        world.clock.advance(300)
        assert power_of(entered) is Power.SUSPENDED


def test_a_clone_is_off_if_its_source_is_and_made_once(world: World) -> None:
    vm = find_entity(world, "VirtualMachine", "ml-01")
    with world.lock:
        strike(world, "vm.cloned", vm, vm)
        clones = [vm for vm in world.by_type("VirtualMachine") if vm.name == "ml-01-copy"]
        assert [(power_of(clone), clone.state.devices, clone.attributes) for clone in clones] == [(Power.OFF, (), {})]
