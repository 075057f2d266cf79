"""A return against a copy of vCenter, which has the same instance uuid, leaves the night of the original open.

Two simulated vCenters of one scenario and seed have one instance uuid. The night is that of the lab, on the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpuops.api import rotate_restore
from gpuops.config.policy import load_policy
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.core.object_store import somebody
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.vms import power
from gpuops.sim.server import SimServer
from tests.wire.nights.test_rotation import DESKTOPS, LAB_POLICY, ML, Wire

MONDAY = timedelta(days=3)


@pytest.fixture
def wire(lab: SimServer, tmp_path: Path) -> Iterator[Wire]:
    """The vCenter of the night."""
    wire = Wire(lab, tmp_path / "state", load_policy(LAB_POLICY))
    yield wire
    assert wire.aside.wrong == []


@pytest.fixture
def copy(serve: Callable[[str], SimServer], wire: Wire) -> Iterator[Wire]:
    """The copy, made before the night: it has another address and certificate."""
    copy = Wire(serve("lab"), wire.state_dir, wire.policy)
    assert copy.status().vcenter == wire.status().vcenter
    yield copy
    assert copy.aside.wrong == []


def vm_called(wire: Wire, name: str) -> VirtualMachine:
    [vm] = [vm for vm in wire.server.world.by_type("VirtualMachine") if vm.name == name]
    return vm


def show_suspend(wire: Wire, name: str, moment: datetime | None) -> None:
    """vCenter shows this moment as that of the VM's last suspend."""
    vm = vm_called(wire, name)
    with wire.server.world.lock:
        vm.state.suspend_time = moment
        vm.power_changed()


def marked_names(wire: Wire) -> set[str]:
    world = wire.server.world
    keys = [key for key, field in world.custom_fields.fields.items() if field.name == "gpuops.rotation"]
    return {vm.name for vm in world.by_type("VirtualMachine") if any(vm.attributes.get(key) for key in keys)}


def check_original_comes_back(wire: Wire) -> None:
    assert wire.day().exit_code == 0
    wire.check_morning()
    assert wire.status().vms == ()


def test_a_return_against_a_copy_changes_nothing_and_the_night_stays_open(wire: Wire, copy: Wire) -> None:
    assert wire.night().exit_code == 0
    morning = copy.day()
    assert morning.exit_code == 4
    assert {named.subject for named in morning.plan.unmet} == DESKTOPS | ML
    assert all("may be a copy of its vCenter" in named.rule for named in morning.plan.unmet)
    assert copy.entries() == []
    assert {mine.whereabouts for mine in copy.status().vms} == {Whereabouts.UNKNOWN}
    check_original_comes_back(wire)


@pytest.mark.long
def test_a_copy_whose_desktops_were_suspended_on_monday_is_told_by_that_moment(wire: Wire, copy: Wire) -> None:
    for name in DESKTOPS:
        show_suspend(copy, name, copy.server.world.clock.now() - MONDAY)
    wire.night()
    morning = copy.day()
    assert morning.exit_code == 4
    [rule] = [named.rule for named in morning.plan.unmet if named.subject == "vdi-07"]
    assert "here it was last suspended at" in rule
    check_original_comes_back(wire)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["vdi-07", "ml-01"])
def test_a_restore_of_one_vm_against_a_copy_leaves_the_original_to_its_return(
    wire: Wire, copy: Wire, name: str
) -> None:
    wire.night()
    restored = copy._with(lambda site: rotate_restore(None, site, (name,), apply=True))
    assert restored.exit_code == 4
    assert copy.entries() == []
    check_original_comes_back(wire)


def test_a_restore_from_markers_against_a_copy_leaves_the_original_to_its_return(wire: Wire, copy: Wire) -> None:
    """It knows no journal while it looks, and closes nothing in it."""
    wire.night()
    policy = wire.policy
    with copy.server.world.lock:
        copy.server.world.custom_fields.define("gpuops.rotation")
    copy._with(lambda site: rotate_restore(policy, site, from_markers=True, apply=True))
    assert copy.entries() == []
    check_original_comes_back(wire)


def test_no_night_begins_in_a_copy_while_the_original_has_one(wire: Wire, copy: Wire) -> None:
    wire.night()
    refused = copy.night()
    assert refused.exit_code == 3
    assert "may be a copy of the vCenter of open nights" in str(refused.plan.rejections[0])
    assert copy.entries() == []
    check_original_comes_back(wire)


def test_the_same_vcenter_at_another_address_with_another_certificate_is_returned(
    wire: Wire, serve: Callable[[str], SimServer]
) -> None:
    """Renewed at night, or reached by a new DNS name."""
    wire.night()
    with SimServer(wire.server.world, password=wire.server.password) as moved:
        assert moved.port != wire.server.port
        moved_wire = replace(wire, server=moved)
        assert moved_wire.day().exit_code == 0
    wire.check_morning()


def test_a_desktop_that_its_user_resumed_at_night_is_no_contradiction(wire: Wire) -> None:
    """Its marker is gone too, as after a return that was killed before it could close it."""
    wire.night()
    world = wire.server.world
    with world.lock:
        power.stop(vm_called(wire, "ml-09"), somebody(world, "PowerOffVM_Task"), clean=False)
        power.power_on(vm_called(wire, "vdi-07"), somebody(world, "PowerOnVM_Task"), None)
        world.clock.advance(600)
        for key in vm_called(wire, "vdi-07").attributes:
            vm_called(wire, "vdi-07").set_attribute(key, "")
    assert wire.day().exit_code == 0
    assert wire.status().vms == ()


def test_a_vcenter_that_forgot_moments_and_markers_still_returns_what_is_suspended(wire: Wire) -> None:
    """As after a restore of its backup: the hosts know that desktops are suspended, vCenter knows no more of the night.
    What came back before that contradicts the journal; all others come back all the same."""
    wire.night()
    world = wire.server.world
    with world.lock:
        power.stop(vm_called(wire, "ml-09"), somebody(world, "PowerOffVM_Task"), clean=False)
        power.power_on(vm_called(wire, "vdi-07"), somebody(world, "PowerOnVM_Task"), None)
        world.clock.advance(2 * 3600)
        for name in DESKTOPS | ML:
            show_suspend(wire, name, None)
            for key in vm_called(wire, name).attributes:
                vm_called(wire, name).set_attribute(key, "")
        world.tasks.forget_history()
    morning = wire.day()
    assert morning.exit_code == 4
    running = {vm.name for vm in world.by_type("VirtualMachine") if vm.state.power == "poweredOn"}
    assert running >= DESKTOPS
    still_open = {mine.original.name for mine in wire.status().vms}
    assert still_open == {"vdi-07", "ml-09"}, "what the return brought back is closed"


def test_desktops_that_a_return_closed_by_mistake_come_back_by_their_markers(wire: Wire, copy: Wire) -> None:
    wire.night()
    for name in DESKTOPS:  # as if the copy had seen the night, and every desktop had come back since
        show_suspend(copy, name, vm_called(wire, name).state.suspend_time)
    assert {named.subject for named in copy.day().plan.unmet} == ML
    assert wire.day().exit_code == 0
    assert wire.to_power("poweredOn") == Counter(DESKTOPS | ML)
    assert wire.to_power("poweredOff") == Counter(ML)
    assert marked_names(wire) == set()
