"""DirectPath entries that the host refuses at power-on: named by doctor, replaced by attach in one reconfigure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.api import Site, doctor, run
from gpuops.clock import wall_clock
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.host_findings import Severity
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import StaticBacking
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

VM, ADDRESS = "ml-03", "0000:5e:00.0"


def rewrite_entry(server: SimServer, **fields: Any) -> VmEntity:
    """Write other ids into the DirectPath entry of the VM, as a client can: vCenter accepts any."""
    vm: VmEntity = next(vm for vm in server.world.by_type("VirtualMachine") if vm.name == VM)
    [device] = vm.state.devices
    assert isinstance(device.backing, StaticBacking)
    vm.state.devices = (replace(device, backing=replace(device.backing, **fields)),)
    vm.state.change += 1
    vm.touch("config", "summary")
    return vm


def errors_of(site: Site) -> list[str]:
    return [finding.reason for finding in doctor(site, Scope()).findings if finding.severity is Severity.ERROR]


MISMATCHES = pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device_id": "9913"}, "its entry for 0000:5e:00.0 names 10de:9913, and the device there is 10de:26b9"),
        ({"vendor_id": 0x1002}, "its entry for 0000:5e:00.0 names 1002:26b9, and the device there is 10de:26b9"),
        ({"system_id": "other"}, "its entry for 0000:5e:00.0 has the system id of another host than esx-02.lab"),
    ],
    ids=["device-id-in-decimal", "vendor-id", "system-id"],
)


@pytest.mark.quick_cases(1)
@MISMATCHES
def test_attach_replaces_the_entry_and_the_vm_starts(
    lab: SimServer, fields: dict[str, object], reason: str, tmp_path: Path
) -> None:
    vm = rewrite_entry(lab, **fields)
    with Connection(target_of(lab)) as connection:
        site = Site(connection, tmp_path, wall_clock)
        assert errors_of(site) == [f"does not start: {reason}"]
        report = run(Attach(VM, device=(ADDRESS,), power=PowerPolicy.ON), site, apply=True)
        assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE, Verdict.DONE], report.plan.rejections
        assert f"{VM}: {reason}: gpuops replaces the entry" in report.plan.warnings
        assert errors_of(site) == []
    methods = [change.method for change in lab.world.ledger if change.name == VM]
    assert methods == ["ReconfigVM_Task", "PowerOnVM_Task"]
    assert vm.state.held == ((13000, ADDRESS),)


@pytest.mark.long
def test_an_entry_of_an_address_that_the_host_does_not_have(lab: SimServer, tmp_path: Path) -> None:
    rewrite_entry(lab, pci_id="0000:99:00.0")
    with Connection(target_of(lab)) as connection:
        site = Site(connection, tmp_path, wall_clock)
        assert errors_of(site) == ["does not start: esx-02.lab has no device at 0000:99:00.0"]
        report = run(Attach(VM, device=("0000:99:00.0",)), site, apply=True)
        assert "is not a passthrough device of this host" in "; ".join(map(str, report.plan.rejections))
        report = run(Attach(VM, device=(ADDRESS,), replace="0000:99:00.0"), site, apply=True)
        assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE]
        assert errors_of(site) == []


@pytest.mark.long
def test_the_entry_of_a_running_vm_is_not_compared(lab: SimServer, tmp_path: Path) -> None:
    with Connection(target_of(lab)) as connection:
        site = Site(connection, tmp_path, wall_clock)
        run(Attach(VM, device=(ADDRESS,), power=PowerPolicy.ON), site, apply=True)
        rewrite_entry(lab, device_id="0x26B9")
        report = run(Attach(VM, device=(ADDRESS,)), site, apply=True)
        assert (report.plan.steps, errors_of(site)) == ((), [])
