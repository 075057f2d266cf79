"""An ML VM powers itself off when its work is done. If an admin starts it again, the return leaves it running."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpuops.model.vcenter.target import Secret
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.core.object_store import somebody
from gpuops.sim.operations.host_admission import place
from gpuops.sim.operations.recording import recorded
from gpuops.sim.operations.vms import power
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.nights.test_rotation import DESKTOPS, ML, Wire
from tests.wire.nights.test_suspended_state import back, desktop, lab_wire

__all__ = ["lab_wire"]

NAME = "ml-06"
"""Holds GPUs that no desktop of the lab needs."""


def power_itself_off(wire: Wire) -> None:
    with wire.server.world.lock:
        power.stop(desktop(wire, NAME), somebody(wire.server.world, "ShutdownGuest"), clean=True)
        wire.server.world.clock.advance(timedelta(hours=1).total_seconds())


def start_by_its_user(wire: Wire) -> None:
    wire.server.world.sessions.passwords["somebody@vsphere.local"] = "else"
    user = replace(target_of(wire.server), username="somebody@vsphere.local", password=Secret("else"))
    with Connection(user) as theirs:
        inventory = theirs.inventory()
        task = theirs.submit(PowerOnVm(desktop(wire, NAME).moid), inventory, "theirs")
        assert task is not None
        [end] = theirs.wait([task], 600)
    assert end.error is None


def start_by_ha(wire: Wire) -> None:
    """vSphere HA restarts a VM without a task."""
    world, vm = wire.server.world, desktop(wire, NAME)
    with world.lock:
        with recorded(vm, somebody(world, "FailOver")):
            chosen, admitted = place(vm, None)
            power.start(vm, chosen.moid, admitted.seats, admitted.held)
        world.clock.advance(timedelta(minutes=10).total_seconds())


def stopped_names(wire: Wire) -> set[str]:
    """Which VMs the return has stopped: an effect of gpuops has the id of its step."""
    ours = (entry for entry in wire.entries() if entry.operation_id.startswith("gpuops-"))
    return {entry.name for entry in ours if entry.after.get("power") == "poweredOff"}


def test_what_its_user_has_started_since_is_not_stopped(lab_wire: Wire) -> None:
    lab_wire.night()
    power_itself_off(lab_wire)
    start_by_its_user(lab_wire)
    whereabouts = {mine.original.name: (mine.whereabouts, mine.reason) for mine in lab_wire.status().vms}
    assert whereabouts[NAME] == (Whereabouts.UNTOUCHED, "runs: somebody else has started it since")
    report = lab_wire.day()
    assert report.exit_code == 0
    assert stopped_names(lab_wire) == ML - {NAME}
    assert desktop(lab_wire, NAME).state.power == "poweredOn"
    assert back(lab_wire) == DESKTOPS
    assert not lab_wire.day().plan.steps, "the night is over for it"


@pytest.mark.parametrize("restarted", [True, False])
def test_what_vsphere_ha_has_restarted_is_still_of_the_night(lab_wire: Wire, restarted: bool) -> None:
    lab_wire.night()
    if restarted:
        power_itself_off(lab_wire)
        start_by_ha(lab_wire)
    assert lab_wire.day().exit_code == 0
    assert stopped_names(lab_wire) == ML
    assert back(lab_wire) == DESKTOPS
