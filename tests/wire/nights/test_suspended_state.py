"""A desktop that somebody reverted to a suspended snapshot in the night comes back, and is named with both moments.

The night is that of the lab. `tests/sim/operations/test_movement.py` has what such a revert does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpuops.api import rotate_day, rotate_restore, rotate_resume
from gpuops.config.policy import load_policy
from gpuops.execute.site import Site
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.power_moments import SAME_MOMENT_TOLERANCE
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.vms import power
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from gpuops.sim.server import SimServer
from tests.wire.nights.test_return import cut_off
from tests.wire.nights.test_rotation import DESKTOPS, LAB_POLICY, Wire

pytestmark = pytest.mark.long

NAME = "vdi-09"
WAYS: dict[str, Callable[[Site], Report]] = {
    "day": lambda site: rotate_day(None, site, apply=True),
    "restore --vm": lambda site: rotate_restore(None, site, ("ml-09", NAME), apply=True),
    "resume": lambda site: rotate_resume(site, apply=True),
}


@pytest.fixture
def lab_wire(lab: SimServer, tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(lab, tmp_path / "state", load_policy(LAB_POLICY))
    yield wire
    assert wire.aside.wrong == []


def desktop(wire: Wire, name: str = NAME) -> VirtualMachine:
    [vm] = [vm for vm in wire.server.world.by_type("VirtualMachine") if vm.name == name]
    return vm


def suspended_at(wire: Wire) -> datetime:
    moment = desktop(wire).state.suspend_time
    assert moment is not None
    return moment


def revert(wire: Wire) -> None:
    happening = "vm.reverted_to_suspended"
    with wire.server.world.lock:
        OUTSIDE_EVENTS[happening].strike(wire.server.world, [desktop(wire)], Rule(Effect.HAPPEN, happening=happening))


def format_moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def state_warnings(report: Report) -> list[str]:
    return [warning for warning in report.plan.warnings if "when its night suspended it" in warning]


def back(wire: Wire) -> set[str]:
    return {vm.name for vm in wire.server.world.by_type("VirtualMachine") if vm.state.power == "poweredOn"} & DESKTOPS


@pytest.mark.parametrize("way", WAYS)
def test_it_is_resumed_and_named_with_both_moments(lab_wire: Wire, way: str) -> None:
    lab_wire.night()
    then = suspended_at(lab_wire)
    revert(lab_wire)
    another = (
        f"its suspended state was saved at {format_moment(suspended_at(lab_wire))}, not at {format_moment(then)} when "
        "its night suspended it: somebody has reverted it to a snapshot; tell its user"
    )
    reasons = {mine.original.name: mine.reason for mine in lab_wire.status().away}
    assert reasons[NAME].endswith(f"; {another}")
    assert sum("suspended state" in reason for reason in reasons.values()) == 1
    if way == "resume":
        lab_wire._with(cut_off)
        assert NAME not in back(lab_wire)
    report = lab_wire._with(WAYS[way])
    assert report.exit_code == 0
    assert state_warnings(report) == [f"{NAME}: {another}"]
    assert NAME in back(lab_wire)


def test_one_that_is_resumed_before_the_return_is_named_once(lab_wire: Wire) -> None:
    """By its broker perhaps, or by a return that was cut off."""
    lab_wire.night()
    then = suspended_at(lab_wire)
    revert(lab_wire)
    with lab_wire.server.world.lock:
        power.stop(desktop(lab_wire, "ml-09"), somebody(lab_wire.server.world, "PowerOffVM_Task"), clean=False)
        power.power_on(desktop(lab_wire), somebody(lab_wire.server.world, "PowerOnVM_Task"), None)
        lab_wire.server.world.clock.advance(timedelta(minutes=10).total_seconds())
    assert NAME in back(lab_wire)
    [warning] = state_warnings(lab_wire.day())
    assert warning.startswith(
        f"{NAME}: it was resumed in a state that was saved at {format_moment(suspended_at(lab_wire))}, not at "
    )
    assert format_moment(then) in warning
    assert state_warnings(lab_wire.day()) == []


def test_a_restore_of_others_does_not_speak_of_it(lab_wire: Wire) -> None:
    lab_wire.night()
    revert(lab_wire)
    report = lab_wire._with(lambda site: rotate_restore(None, site, ("ml-09", "vdi-07"), apply=True))
    assert state_warnings(report) == []
    assert back(lab_wire) == {"vdi-07"}


def test_one_that_was_resumed_and_suspended_since_is_named_as_that(lab_wire: Wire) -> None:
    lab_wire.night()
    world = lab_wire.server.world
    with world.lock:
        world.clock.advance(3600)
        power.restore_checkpoint(desktop(lab_wire), world.clock.now())
    [warning] = state_warnings(lab_wire.day())
    assert warning.startswith(f"{NAME}: ")
    assert warning.endswith("somebody has resumed and suspended it since, or reverted it to a snapshot; tell its user")


def test_who_is_as_its_night_left_it_is_not_named(lab_wire: Wire) -> None:
    lab_wire.night()
    with lab_wire.server.world.lock:
        power.restore_checkpoint(desktop(lab_wire), suspended_at(lab_wire) - SAME_MOMENT_TOLERANCE)
    assert state_warnings(lab_wire.day()) == []
    assert back(lab_wire) == DESKTOPS


def test_where_no_journal_tells_when_the_night_suspended_it_nothing_is_said(lab_wire: Wire, tmp_path: Path) -> None:
    lab_wire.night()
    revert(lab_wire)
    lab_wire.state_dir = tmp_path / "another machine"
    report = lab_wire.day()
    assert state_warnings(report) == []
    assert back(lab_wire) == DESKTOPS


def test_of_a_desktop_that_a_second_run_suspended_the_last_moment_counts(lab_wire: Wire) -> None:
    lab_wire.night()
    with lab_wire.server.world.lock:
        power.power_on(desktop(lab_wire), somebody(lab_wire.server.world, "PowerOnVM_Task"), None)
        lab_wire.server.world.clock.advance(timedelta(minutes=10).total_seconds())
    lab_wire.night()
    assert state_warnings(lab_wire.day()) == []
    assert back(lab_wire) == DESKTOPS
