"""Dynamic DirectPath I/O asked for again over the wire, where the VM's device may get GPUs of several types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuops.api import Site, run
from gpuops.clock import wall_clock
from gpuops.plan.core.plan import Verdict
from gpuops.plan.vm.attach import Attach
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import DynamicBacking
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of


def test_a_device_with_the_label_is_not_asked_for_twice(lab: SimServer, tmp_path: Path) -> None:
    vm = next(vm for vm in lab.world.by_type("VirtualMachine") if vm.name == "ml-04")
    [device] = vm.state.devices
    assert isinstance(device.backing, DynamicBacking)
    several = replace(device.backing, allowed=((0x10DE, 0x2235), *device.backing.allowed))
    vm.state.devices = (replace(device, backing=several),)
    with Connection(target_of(lab)) as connection:
        site = Site(connection, tmp_path, wall_clock)
        first = run(Attach("ml-04", dynamic=True, label="l40s-ml"), site, apply=True)
        assert all(outcome.verdict is Verdict.DONE for outcome in first.outcomes), first.plan.rejections
        assert [device.backing for device in vm.state.devices] == [several]
        second_run = run(Attach("ml-04", dynamic=True, label="l40s-ml"), site, apply=True)
        assert (second_run.plan.feasible, second_run.plan.steps) == (True, ())
        other_device = run(Attach("ml-04", device_type=("10de:26b9",), label="l40s-ml"), site, apply=True)
    assert [str(rejection) for rejection in other_device.plan.rejections] == [
        "ml-04: has dynamic 10de:2235,10de:26b9 label l40s-ml already"
    ]
