"""Hosts that are removed from the inventory at night and added again: their VMs have other ids and no markers, and come
back as any other, by the journal."""

from __future__ import annotations

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from tests.wire.nights.test_copied_vcenter import marked_names
from tests.wire.nights.test_later_starts import stopped_names
from tests.wire.nights.test_rotation import DESKTOPS, ML, Wire
from tests.wire.nights.test_suspended_state import back


def test_what_the_night_took_comes_back_and_the_night_is_closed(wire: Wire) -> None:
    wire.night()
    world = wire.server.world
    before = {vm.name: vm.moid for vm in world.by_type("VirtualMachine")}
    happening = "host.readded"
    with world.lock:
        hosts = list(world.by_type("HostSystem"))
        OUTSIDE_EVENTS[happening].strike(world, hosts, Rule(Effect.HAPPEN, happening=happening))
    assert not marked_names(wire)
    assert all(vm.moid != before[vm.name] for vm in world.by_type("VirtualMachine"))
    assert {mine.original.name for mine in wire.status().vms} == DESKTOPS | ML
    assert wire.day().exit_code == 0
    assert (back(wire), stopped_names(wire)) == (DESKTOPS, ML)
    assert wire.status().vms == ()
