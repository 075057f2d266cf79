"""Disks, network cards, controllers and drives that clients give VMs, and what a snapshot brings back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.sim.server import start
from tests.sim.lab import Lab, connect

D: Any = vim.vm.device
SCSI = D.ParaVirtualSCSIController(key=1000, busNumber=0, sharedBus="noSharing")


def add_device(device: Any, **options: Any) -> Any:
    return D.VirtualDeviceSpec(operation="add", device=device, **options)


def disk(gib: int, controller: int, key: int = -20, unit: int | None = None) -> Any:
    backing = D.VirtualDisk.FlatVer2BackingInfo(fileName="", diskMode="persistent", thinProvisioned=True)
    virtual_disk = D.VirtualDisk(
        key=key, controllerKey=controller, unitNumber=unit, capacityInKB=gib << 20, backing=backing
    )
    return add_device(virtual_disk, fileOperation="create")


def card(network: str = "VM Network", key: int = -30) -> Any:
    backing = D.VirtualEthernetCard.NetworkBackingInfo(deviceName=network)
    return add_device(D.VirtualVmxnet3(key=key, backing=backing, addressType="generated"))


def whole(lab: Lab, name: str = "small") -> Any:
    """A VM as Terraform makes one: a controller, two disks, a network card and a drive, in one spec."""
    drive = D.VirtualCdrom(
        key=-40, controllerKey=200, backing=D.VirtualCdrom.IsoBackingInfo(fileName="[lab-ds-1] iso/a.iso")
    )
    scsi = add_device(D.ParaVirtualSCSIController(key=-10, busNumber=0, sharedBus="noSharing"))
    spec = vim.vm.ConfigSpec(
        name=name,
        files=vim.vm.FileInfo(vmPathName="[lab-ds-1]"),
        numCPUs=1,
        memoryMB=64,
        deviceChange=[scsi, disk(8, -10), disk(16, -10, key=-21), card(), add_device(drive)],
    )
    return lab.run(lab.datacenter().vmFolder.CreateVM_Task(spec, lab.cluster().resourcePool))


def of(vm: Any, kind: Any) -> list[Any]:
    return [device for device in vm.config.hardware.device if isinstance(device, kind)]


def change(lab: Lab, vm: Any, *changes: Any) -> None:
    lab.run(vm.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=list(changes))))


@pytest.mark.long
def test_devices_get_keys_labels_controllers_and_units_as_vcenter_gives_them(lab: Lab) -> None:
    vm = whole(lab)
    (scsi,) = of(vm, D.VirtualSCSIController)
    disks = of(vm, D.VirtualDisk)
    assert (scsi.key, scsi.busNumber, scsi.device, scsi.deviceInfo.label) == (
        1000,
        0,
        [2000, 2001],
        "SCSI controller 0",
    )
    assert [(disk.key, disk.controllerKey, disk.unitNumber, disk.deviceInfo.label) for disk in disks] == [
        (2000, 1000, 0, "Hard disk 1"),
        (2001, 1000, 1, "Hard disk 2"),
    ]
    assert [disk.backing.fileName for disk in disks] == ["[lab-ds-1] small/small.vmdk", "[lab-ds-1] small/small_1.vmdk"]
    assert len({disk.backing.uuid for disk in disks}) == 2
    (nic,) = of(vm, D.VirtualEthernetCard)
    assert (nic.key, nic.unitNumber, nic.deviceInfo.label, nic.backing.network) == (
        4000,
        7,
        "Network adapter 1",
        vm.network[0],
    )
    assert nic.macAddress.startswith("00:50:56:")
    (drive,) = of(vm, D.VirtualCdrom)
    assert (drive.key, drive.controllerKey, drive.deviceInfo.label) == (3000, 200, "CD/DVD drive 1")
    assert drive.backing.fileName == "[lab-ds-1] iso/a.iso"
    assert (vm.summary.config.numVirtualDisks, vm.summary.config.numEthernetCards) == (2, 1)
    assert [disk.diskFile for disk in vm.layout.disk] == [[disk.backing.fileName] for disk in disks]


def test_a_network_card_has_an_allocation(lab: Lab) -> None:
    """The defaults that vCenter gives (VirtualEthernetCardResourceAllocation); what is not kept is refused."""
    (nic,) = of(lab.vm("ml-07"), D.VirtualEthernetCard)
    allocation = nic.resourceAllocation
    assert (allocation.reservation, allocation.limit) == (0, -1)
    assert (allocation.share.shares, allocation.share.level) == (50, "normal")
    added_card = card()
    added_card.device.resourceAllocation = allocation
    change(lab, lab.vm("ml-07"), added_card)
    allocation.limit = 100
    with pytest.raises(vmodl.fault.NotSupported, match="resourceAllocation"):
        change(lab, lab.vm("ml-07"), added_card)


@pytest.mark.parametrize("name", ["ml-07", "vdi-01"])
def test_every_device_is_on_its_controller(lab: Lab, name: str) -> None:
    devices = {device.key: device for device in lab.vm(name).config.hardware.device}
    for key, device in devices.items():
        for child in getattr(device, "device", []):
            assert devices[child].controllerKey == key
        if device.controllerKey is not None:
            assert key in devices[device.controllerKey].device


@pytest.mark.long
def test_a_running_vm_gets_and_loses_a_disk_and_a_card(lab: Lab) -> None:
    vm = lab.vm("bare")
    change(lab, vm, disk(4, 1000), card())
    assert [device.key for device in of(vm, D.VirtualDisk)] == [2000, 2001]
    second = of(vm, D.VirtualEthernetCard)[1]
    assert (second.key, second.deviceInfo.label, second.connectable.connected) == (4001, "Network adapter 2", True)
    grown = of(vm, D.VirtualDisk)[1]
    grown.capacityInKB = 8 << 20
    change(lab, vm, D.VirtualDeviceSpec(operation="edit", device=grown))
    assert of(vm, D.VirtualDisk)[1].capacityInBytes == 8 << 30
    grown = of(vm, D.VirtualDisk)[1]
    grown.capacityInBytes = 16 << 30  # as govc vm.disk.change: the other one stays as it was read
    change(lab, vm, D.VirtualDeviceSpec(operation="edit", device=grown))
    assert of(vm, D.VirtualDisk)[1].capacityInKB == 16 << 20
    grown.capacityInBytes, grown.capacityInKB = 4 << 30, 16 << 20
    with pytest.raises(vim.fault.InvalidDeviceSpec):
        change(lab, vm, D.VirtualDeviceSpec(operation="edit", device=grown))
    change(lab, vm, *(D.VirtualDeviceSpec(operation="remove", device=device) for device in (grown, second)))
    assert [device.key for device in (*of(vm, D.VirtualDisk), *of(vm, D.VirtualEthernetCard))] == [2000, 4000]


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (disk(4, 1001), vim.fault.InvalidController),
        (disk(4, 1000, unit=0), vim.fault.InvalidDeviceSpec),
        (disk(4, 1000, unit=7), vim.fault.InvalidDeviceSpec),
        (disk(0, 1000), vim.fault.InvalidDeviceSpec),
        (add_device(disk(4, 1000).device), vim.fault.FileNotFound),
        (card("no such network"), vim.fault.InvalidDeviceBacking),
        (D.VirtualDeviceSpec(operation="remove", device=D.VirtualDisk(key=2009)), vim.fault.DeviceNotFound),
        (
            D.VirtualDeviceSpec(
                operation="remove", device=D.ParaVirtualSCSIController(key=1000, busNumber=0, sharedBus="noSharing")
            ),
            vim.fault.InvalidDeviceOperation,
        ),
        (
            D.VirtualDeviceSpec(operation="edit", device=disk(1, 1000, key=2000).device),
            vim.fault.InvalidDeviceOperation,
        ),
        (add_device(D.VirtualFloppy(key=-1)), vmodl.fault.NotSupported),
    ],
)
def test_what_is_refused_changes_nothing(lab: Lab, spec: Any, fault: type[Exception]) -> None:
    vm = lab.vm("ml-07")
    before = [device.key for device in vm.config.hardware.device]
    with pytest.raises(fault):
        change(lab, vm, card(), spec)
    assert [device.key for device in vm.config.hardware.device] == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "fault"),
    [("[lab-ds-1] none.vmdk", vim.fault.FileNotFound), ("[lab-ds-1] ml-08/ml-08.vmdk", vmodl.fault.NotSupported)],
)
def test_a_disk_of_an_existing_file_is_not_made_anew(lab: Lab, file: str, fault: type[Exception]) -> None:
    child = disk(4, 1000)
    child.device.backing.parent = D.VirtualDisk.FlatVer2BackingInfo(fileName=file, diskMode="persistent")
    child.device.capacityInKB = 0
    attached = add_device(disk(4, 1000).device)
    attached.device.backing.fileName = file
    for spec in (child, attached):
        with pytest.raises(fault):
            change(lab, lab.vm("ml-07"), spec)


@pytest.mark.long
def test_a_drive_gets_another_image_and_is_emptied(lab: Lab) -> None:
    vm = whole(lab)
    image, empty = D.VirtualCdrom.IsoBackingInfo, D.VirtualCdrom.RemotePassthroughBackingInfo
    for backing in (image(fileName="[lab-ds-1] iso/driver.iso"), empty(exclusive=False, deviceName="")):
        (drive,) = of(vm, D.VirtualCdrom)
        drive.backing = backing
        change(lab, vm, D.VirtualDeviceSpec(operation="edit", device=drive))
        assert isinstance(of(vm, D.VirtualCdrom)[0].backing, type(backing))


@pytest.mark.long
def test_virtual_hardware_is_upgraded_while_the_vm_is_off(lab: Lab) -> None:
    """VirtualMachine.UpgradeVM_Task of the vSphere API."""
    vm = lab.vm("ml-07")
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(vm.UpgradeVM_Task("vmx-99"))
    with pytest.raises(vim.fault.AlreadyUpgraded):
        lab.run(vm.UpgradeVM_Task(vm.config.version))
    before = vm.config.version, vm.config.changeVersion
    lab.run(vm.UpgradeVM_Task("vmx-21"))
    assert (vm.config.version, vm.config.changeVersion != before[1]) == ("vmx-21", True)
    assert lab.events("ml-07")[-1] == "VmUpgradeCompleteEvent"
    with pytest.raises(vim.fault.AlreadyUpgraded):
        lab.run(vm.UpgradeVM_Task())
    lab.run(vm.PowerOnVM_Task())
    with pytest.raises(vim.fault.InvalidPowerState):
        lab.run(vm.UpgradeVM_Task())
    with pytest.raises(vim.fault.InvalidState):
        lab.run(lab.vm("golden").UpgradeVM_Task())


@pytest.mark.long
def test_a_vm_has_four_scsi_controllers_at_most(lab: Lab) -> None:
    controllers = [
        add_device(D.VirtualLsiLogicController(key=-number, busNumber=0, sharedBus="noSharing")) for number in (1, 2, 3)
    ]
    change(lab, lab.vm("ml-07"), *controllers)
    assert [controller.key for controller in of(lab.vm("ml-07"), D.VirtualSCSIController)] == [1000, 1001, 1002, 1003]
    with pytest.raises(vim.fault.TooManyDevices):
        change(lab, lab.vm("ml-07"), controllers[0])


@pytest.mark.long
def test_a_snapshot_brings_the_configuration_and_the_power_back(lab: Lab) -> None:
    vm = lab.vm("ml-07")
    with pytest.raises(vim.fault.NotFound):
        lab.run(vm.RevertToCurrentSnapshot_Task())
    first = lab.run(vm.CreateSnapshot_Task("first", "", memory=False, quiesce=False))
    change(lab, vm, disk(4, 1000))
    lab.run(vm.ReconfigVM_Task(vim.vm.ConfigSpec(numCPUs=2, annotation="later")))
    lab.run(vm.PowerOnVM_Task())
    lab.run(vm.CreateSnapshot_Task("second", "", memory=True, quiesce=False))
    lab.run(first.RevertToSnapshot_Task())
    assert (vm.runtime.powerState, vm.config.hardware.numCPU, vm.config.annotation) == ("poweredOff", 8, "")
    assert (len(of(vm, D.VirtualDisk)), vm.snapshot.currentSnapshot) == (1, first)
    (tree,) = vm.snapshot.rootSnapshotList
    second = tree.childSnapshotList[0].snapshot
    second.RenameSnapshot("renamed", "with memory")
    lab.run(second.RevertToSnapshot_Task())
    assert (vm.runtime.powerState, vm.config.hardware.numCPU, len(of(vm, D.VirtualDisk))) == ("poweredOn", 2, 2)
    lab.run(second.RevertToSnapshot_Task(None, True))
    assert vm.runtime.powerState == "suspended"
    child_snapshot = vm.snapshot.rootSnapshotList[0].childSnapshotList[0]
    assert (child_snapshot.name, child_snapshot.description) == ("renamed", "with memory")
    with pytest.raises(vim.fault.InvalidName):
        second.RenameSnapshot("", None)


@pytest.mark.long
def test_a_clone_has_files_and_addresses_of_its_own(lab: Lab) -> None:
    vm = whole(lab)
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(), powerOn=False, template=False)
    copy = lab.run(vm.CloneVM_Task(vm.parent, "copy", spec))
    assert [virtual_disk.backing.fileName for virtual_disk in of(copy, D.VirtualDisk)] == [
        "[lab-ds-1] copy/copy.vmdk",
        "[lab-ds-1] copy/copy_1.vmdk",
    ]
    assert of(copy, D.VirtualEthernetCard)[0].macAddress != of(vm, D.VirtualEthernetCard)[0].macAddress


@pytest.mark.long
def test_a_saved_state_has_the_devices(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with start("lab", tls=False, clock="stepped", state=state) as server:
        si = connect(server)
        before = str(whole(Lab(server.world, si)).config.hardware.device)
        Disconnect(si)
    with start("lab", tls=False, clock="stepped", state=state) as server:
        si = connect(server)
        assert str(Lab(server.world, si).vm("small").config.hardware.device) == before
        Disconnect(si)
    assert server.world.bugs == []


@pytest.mark.long
def test_vmware_tools_were_installed_no_further_time(lab: Lab) -> None:
    assert lab.vm("ml-07").config.tools.lastInstallInfo.counter == 0


@pytest.mark.long
def test_a_guest_shows_the_network_cards_of_its_vm(lab: Lab) -> None:
    vm = lab.vm("vdi-01")
    (nic,), (card,) = vm.guest.net, of(vm, D.VirtualEthernetCard)
    assert (nic.macAddress, nic.deviceConfigId, nic.network) == (card.macAddress, card.key, card.backing.deviceName)
    assert list(nic.ipAddress) == [vm.guest.ipAddress]
    change(lab, vm, D.VirtualDeviceSpec(operation="remove", device=card))
    assert vm.guest.net == []
    assert lab.vm("ml-07").guest.net == []
