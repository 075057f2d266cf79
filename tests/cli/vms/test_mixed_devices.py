"""An SR-IOV network card, a whole GPU and a vGPU in one VM: shown, changed one by one, the network card left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.sim.server import start
from tests.cli.conftest import Lab, lab_on
from tests.sim.operations.mixed import CARD, mixed_lab

pytestmark = pytest.mark.long


@pytest.fixture
def lab(tmp_path: Path, clean: Path) -> Iterator[Lab]:
    with start(mixed_lab(tmp_path), clock="stepped") as server, lab_on(server, tmp_path, clean) as lab:
        yield lab
        assert list(server.world.bugs) == []


def devices_of(lab: Lab, name: str) -> str:
    """The line of a VM in `gpuops inventory --vms`; empty = it is not among those with GPUs."""
    result = lab.run("inventory", "--vms")
    assert result.exit_code == 0
    return next((line for line in result.stdout.splitlines() if line.startswith(f"{name} ")), "")


def test_each_is_shown_and_changed_by_itself(lab: Lab) -> None:
    nic = f"other device {CARD}"
    assert f"DirectPath 0000:5e:00.0, vGPU nvidia_a40-8q, {nic}" in devices_of(lab, "mixed")
    result = lab.run("attach", "--vm", "mixed", "--profile", "a40-24c", "--replace", "a40-8q", "--add")
    assert (result.exit_code, result.stderr.count("Traceback")) == (0, 0), result.output
    assert f"DirectPath 0000:5e:00.0, vGPU nvidia_a40-24c, {nic}" in devices_of(lab, "mixed")
    assert lab.run("detach", "--vm", "mixed", "--device", "0000:5e:00.0").exit_code == 0
    assert f"vGPU nvidia_a40-24c, {nic}" in devices_of(lab, "mixed")
    assert lab.run("detach", "--vm", "mixed", "--all").exit_code == 0
    second_detach = lab.run("detach", "--vm", "mixed", "--all")
    assert (second_detach.exit_code, second_detach.stdout) == (
        0,
        "nothing to do: mixed has no GPU device; nothing to detach\n",
    )
    (vm,) = (machine for machine in lab.server.world.by_type("VirtualMachine") if machine.name == "mixed")
    assert [device.key for device in vm.state.devices] == [13031], "the network card is as it was"
    assert devices_of(lab, "carded") == "", "a network card is no GPU"


def test_a_device_that_cannot_be_read_is_shown_and_named(lab: Lab) -> None:
    """A PCI address as VMX files have it, with bus and slot in decimal; vCenter accepts any."""
    (vm,) = (vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == "ml-03")
    [device] = vm.state.devices
    vm.state.devices = (replace(device, backing=replace(device.backing, pci_id="00000:094:00.0")),)
    vm.state.memory_locked, vm.state.memory_reservation_mib = False, 0
    assert "unknown device PCI device 0" in devices_of(lab, "ml-03")
    printed = lab.run("doctor").stdout
    assert "ml-03: PCI device 0 cannot be read; it may be a GPU, or keep the VM from starting" in printed
    assert "ml-03: not all its memory is reserved: it does not start" in printed
    answer = lab.run("detach", "--vm", "ml-03", "--all")
    assert answer.stdout == (
        "nothing to do: ml-03 has no GPU device that can be read, and 1 that cannot be; nothing to detach\n"
    )
