"""An SR-IOV network card in a VM, as a client sees it; `test_rdma.py` has what it forbids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.errors import PolicyError
from gpuops.sim.scenario.build import build
from tests.sim.lab import Lab, P, serve_lab
from tests.sim.operations.mixed import CARD, mixed_lab

Card = vim.vm.device.VirtualSriovEthernetCard
DeviceSpec = vim.vm.device.VirtualDeviceSpec


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with serve_lab(mixed_lab(tmp_path)) as lab:
        yield lab


def card(lab: Lab, name: str) -> Any:
    (sriov_card,) = [device for device in lab.vm(name).config.hardware.device if isinstance(device, Card)]
    return sriov_card


@pytest.mark.long
def test_it_is_a_network_card_with_a_port_behind_it(lab: Lab) -> None:
    sriov_card = card(lab, "mixed")
    assert (sriov_card.key, sriov_card.controllerKey, sriov_card.deviceInfo.label) == (13031, 100, CARD)
    assert sriov_card.sriovBacking.physicalFunctionBacking.id == "0000:31:00.0"
    assert isinstance(sriov_card.backing, vim.vm.device.VirtualEthernetCard.NetworkBackingInfo)
    cards = [d for d in lab.vm("mixed").config.hardware.device if isinstance(d, vim.vm.device.VirtualEthernetCard)]
    assert lab.vm("mixed").summary.config.numEthernetCards == len({card.macAddress for card in cards}) == 2
    assert [device.key for device in lab.passthrough("mixed")] == [13000, 13001]


@pytest.mark.long
def test_it_cannot_be_taken_for_another_device(lab: Lab) -> None:
    removal = DeviceSpec(operation="remove", device=P(key=13031))
    with pytest.raises(vim.fault.DeviceNotFound, match="Device 13031 is not in this virtual machine"):
        lab.run(lab.vm("mixed").ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[removal])))
    assert card(lab, "mixed").key == 13031


def test_the_port_must_be_there(tmp_path: Path) -> None:
    path = Path(mixed_lab(tmp_path))
    path.write_text(
        path.read_text(encoding="utf-8").replace('sriov: "0000:31:00.1"', 'sriov: "0000:99:00.1"'), encoding="utf-8"
    )
    with pytest.raises(PolicyError, match=r"no network card at '0000:99:00\.1'"):
        build(str(path))
