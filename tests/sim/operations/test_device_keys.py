"""Keys, unit numbers and VMX names of passthrough devices, as they were recorded on vCenter 8.0.3.

Source: govmomi's research note "NIC unit numbers", experiment E14.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVmomi import vim

from tests.sim.lab import Lab, P, serve_lab
from tests.sim.operations.test_rdma import Sriov, clone, sriov_card

DeviceSpec = vim.vm.device.VirtualDeviceSpec
PROFILE = "grid_a100d-20c"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with serve_lab("training") as lab:
        yield lab


def vgpu(key: int = -7) -> Any:
    return P(key=key, backing=P.VmiopBackingInfo(vgpu=PROFILE))


def keys_and_units(lab: Lab, name: str) -> list[tuple[int, int | None]]:
    """Of its passthrough devices and SR-IOV cards, by key."""
    devices = lab.vm(name).config.hardware.device
    return sorted((device.key, device.unitNumber) for device in devices if isinstance(device, P | Sriov))


def change(lab: Lab, name: str, operation: str, *devices: Any) -> None:
    changes = [DeviceSpec(operation=operation, device=device) for device in devices]
    lab.run(lab.vm(name).ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=changes)))


def remove(lab: Lab, name: str, key: int) -> None:
    [device] = [device for device in lab.vm(name).config.hardware.device if device.key == key]
    change(lab, name, "remove", device)


def test_sriov_cards_count_downwards_and_other_devices_upwards_and_gaps_are_filled(lab: Lab) -> None:
    clone(lab, "node-1", *(sriov_card(lab) for _ in range(3)))
    assert keys_and_units(lab, "node-1") == [(13029, 63), (13030, 64), (13031, 65)]
    change(lab, "node-1", "add", vgpu())
    change(lab, "node-1", "add", sriov_card(lab))
    change(lab, "node-1", "add", vgpu())
    assert keys_and_units(lab, "node-1") == [
        (13000, 18), (13001, 19), (13028, 62), (13029, 63), (13030, 64), (13031, 65)
    ]  # fmt: skip
    remove(lab, "node-1", 13030)
    remove(lab, "node-1", 13000)
    assert keys_and_units(lab, "node-1") == [(13001, 19), (13028, 62), (13029, 63), (13031, 65)], "the others stay"
    change(lab, "node-1", "add", vgpu(), sriov_card(lab))
    assert keys_and_units(lab, "node-1") == [
        (13000, 18), (13001, 19), (13028, 62), (13029, 63), (13030, 64), (13031, 65)
    ]  # fmt: skip


@pytest.mark.long
def test_a_key_that_a_client_asks_for_is_not_given(lab: Lab) -> None:
    clone(lab, "node-1")
    card = sriov_card(lab)
    card.key, card.unitNumber = 13010, 40
    change(lab, "node-1", "add", card)
    assert keys_and_units(lab, "node-1") == [(13031, 65)]


@pytest.mark.long
def test_a_pin_binds_the_device_whose_key_it_names(lab: Lab) -> None:
    clone(lab, "node-1", sriov_card(lab))
    change(lab, "node-1", "add", vgpu(), vgpu(-8), vgpu(-9))
    remove(lab, "node-1", 13000)
    remove(lab, "node-1", 13001)
    gpus = [gpu.pciId for gpu in lab.host("esx-01.trn").config.graphicsInfo]
    pins = [
        vim.option.OptionValue(key=f"pciPassthru{number}.cfg.gpu-pci-id", value=gpu)
        for number, gpu in ((0, gpus[0]), (1, gpus[1]), (2, gpus[-1]))
    ]
    lab.run(lab.vm("node-1").ReconfigVM_Task(vim.vm.ConfigSpec(extraConfig=pins)))
    lab.power_on("node-1", "esx-01.trn")
    assert [gpu for gpu, _, _ in lab.seats("node-1")] == [gpus[-1]]
