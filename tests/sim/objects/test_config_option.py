"""QueryConfigOption and its extended form: what VMs are built from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyVmomi import vim

from tests.sim.lab import Lab, serve_lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with serve_lab() as lab:
        yield lab


def test_the_default_devices_are_what_every_vm_has(lab: Lab) -> None:
    """Terraform adds disks and network cards to the controllers of this list."""
    browser = lab.cluster().environmentBrowser
    bare = {device.key: type(device) for device in lab.vm("bare").config.hardware.device}
    for option in (browser.QueryConfigOption(), browser.QueryConfigOptionEx()):
        devices = {device.key: type(device) for device in option.defaultDevice}
        assert devices.items() <= bare.items()
        assert [key for key, kind in devices.items() if issubclass(kind, vim.vm.device.VirtualController)] == [
            200, 201, 300, 100, 400,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("guest", "family", "name"),
    [
        ("rockylinux_64Guest", "linuxGuest", "Rocky Linux (64-bit)"),
        ("windows9_64Guest", "windowsGuest", "Microsoft Windows 10 (64-bit)"),
        ("otherGuest64", "otherGuest", "Other (64-bit)"),
    ],
)
def test_a_guest_system_has_its_family_and_name(lab: Lab, guest: str, family: str, name: str) -> None:
    query = vim.EnvironmentBrowser.ConfigOptionQuerySpec(guestId=[guest], key="vmx-19")
    [descriptor] = lab.cluster().environmentBrowser.QueryConfigOptionEx(query).guestOSDescriptor
    assert (descriptor.id, descriptor.family, descriptor.fullName) == (guest, family, name)
    lab.run(lab.vm("ml-07").ReconfigVM_Task(vim.vm.ConfigSpec(guestId=guest)))
    assert (lab.vm("ml-07").config.guestFullName, lab.vm("ml-07").summary.config.guestFullName) == (name, name)


def test_the_guests_of_the_lab_are_listed(lab: Lab) -> None:
    guest_ids = {guest.id for guest in lab.cluster().environmentBrowser.QueryConfigOption().guestOSDescriptor}
    assert {vm.state.template.guest_id for vm in lab.world.by_type("VirtualMachine")} <= guest_ids
