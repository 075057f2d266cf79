"""Clones that carry the marker of a night, and markers that cannot be read: named, with a command that clears them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.api import rotate_clear_marker, rotate_restore
from gpuops.config.policy import load_policy
from gpuops.sim.core.object_store import somebody
from gpuops.sim.inventory.managed_entity import enter_new, new_moid
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.vms import movement, power
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from tests.wire.nights.test_copied_vcenter import marked_names, vm_called
from tests.wire.nights.test_rotation import DESKTOPS, LAB_POLICY, ML, Wire


@pytest.fixture
def wire(lab: SimServer, tmp_path: Path) -> Iterator[Wire]:
    """A vCenter whose clones have the custom attributes of their sources."""
    lab.world.deviations.add("clone-attributes")
    wire = Wire(lab, tmp_path / "state", load_policy(LAB_POLICY), ("rotate", "--policy", str(LAB_POLICY)))
    yield wire
    assert wire.aside.wrong == []


def clone_vm(wire: Wire, name: str, *, runs: bool) -> VirtualMachine:
    """A clone of the VM without its GPU, as its owner made it."""
    world, source = wire.server.world, vm_called(wire, name)
    with world.lock:
        world.clock.advance(600)
        state = movement.copy_state(
            source, f"{name}-copy", source.state.folder, source.host(), source.state.pool, template=False
        )
        state.devices = ()
        clone = enter_new(VirtualMachine(world, new_moid(world, "vm"), state))
        if runs:
            power.start(clone, source.state.host, (), ())
    assert f"{name}-copy" in marked_names(wire)
    assert isinstance(clone, VirtualMachine)
    return clone


def clear_marker(wire: Wire, name: str) -> int:
    policy = wire.policy
    return wire._with(lambda site: rotate_clear_marker(policy, site, (name,), apply=True)).exit_code


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("name", "runs"), [("ml-01", True), ("vdi-07", False)])
def test_a_clone_of_what_a_night_took_is_named_and_left_alone_until_its_marker_is_cleared(
    wire: Wire, name: str, runs: bool
) -> None:
    wire.night()
    clone = clone_vm(wire, name, runs=runs)
    morning = wire.day()
    assert morning.exit_code == 4
    [named] = morning.plan.unmet
    assert (named.subject, named.hint) == (clone.name, f"gpuops rotate clear-marker --vm {clone.name}")
    assert "it is a copy of a VM of that night" in named.rule
    assert clone.state.power == (Power.ON if runs else Power.OFF)
    assert wire.to_power("poweredOn").keys() >= DESKTOPS
    assert marked_names(wire) == {clone.name}
    assert clear_marker(wire, clone.name) == 0
    assert clone.state.power == (Power.ON if runs else Power.OFF)
    assert wire.day().exit_code == 0
    assert marked_names(wire) == set()


def test_a_vm_that_an_open_night_holds_keeps_its_marker(wire: Wire) -> None:
    wire.night()
    assert clear_marker(wire, "vdi-07") == 3
    assert clear_marker(wire, "no-such-vm") == 3
    assert marked_names(wire) == DESKTOPS | ML


WAYS: dict[str, Callable[[Wire], int]] = {
    "day": lambda wire: wire.day().exit_code,
    "restore --from-markers": lambda wire: (
        wire._with(lambda site: rotate_restore(wire.policy, site, from_markers=True, apply=True)).exit_code
    ),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("change", "code"), [(" {} ", 0), ("{} zone=UTC", 0), ("x{}", 4)])
def test_without_its_journal_a_marker_that_somebody_changed_is_read_or_named(
    wire: Wire, tmp_path: Path, change: str, code: int, way: str
) -> None:
    wire.night()
    world, desktop = wire.server.world, vm_called(wire, "vdi-08")
    with world.lock:
        [(key, value)] = [(key, value) for key, value in desktop.attributes.items() if value.endswith(" desktop")]
        desktop.set_attribute(key, change.format(value.upper() if code == 0 else value))
    elsewhere = replace(wire, state_dir=tmp_path / "another machine")
    assert WAYS[way](elsewhere) == code
    assert (desktop.state.power is Power.ON) is (code == 0)
    if code == 4:
        assert {named.subject for named in elsewhere.day().plan.unmet} == {"vdi-08"}
        with world.lock:
            power.power_on(desktop, somebody(world, "PowerOnVM_Task"), None)
            world.clock.advance(600)
        assert clear_marker(elsewhere, "vdi-08") == 0
    assert marked_names(wire) == set()
