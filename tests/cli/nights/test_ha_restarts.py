"""A morning after vSphere HA resumed suspended desktops on another host: nothing is lost, and each is back or named."""

from __future__ import annotations

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.host_events import crash
from gpuops.sim.scenario.deviations import deviate
from gpuops.sim.state.vm_state import Power
from tests.cli.conftest import LAB_POLICY, Lab


def test_desktops_that_ha_resumed_are_back_or_named(lab_by_night: Lab) -> None:
    world = lab_by_night.server.world
    deviate(world, ["ha-suspended-vms"])
    [host] = [host for host in world.by_type("HostSystem") if host.name == "esx-02.lab"]
    suspended = [vm for vm in host.vms() if vm.state.power is Power.SUSPENDED and vm.name != "vdi-11"]
    assert len(suspended) >= 3
    with world.lock:
        crash(host, Rule(Effect.HAPPEN, for_s=3600.0))
        world.clock.advance(600)
    assert {vm.host().name for vm in suspended} == {"esx-01.lab"}
    day = lab_by_night.run("rotate", "day", "--policy", LAB_POLICY, "--yes")
    assert day.exit_code == 4, day.output
    for vm in suspended:
        back = vm.state.power is Power.ON
        assert back or (vm.state.power is Power.SUSPENDED and f"failed   resume {vm.name}" in day.stdout)
    assert "ml-09: is not connected, its state cannot be read" in day.stdout
    [other_desktop] = [vm for vm in world.by_type("VirtualMachine") if vm.name == "vdi-11"]
    assert other_desktop.state.power is Power.ON, "a desktop that no night took stays as vSphere HA left it"
