"""What pyVmomi's community samples do with VMs, written anew: they sleep, poll and ask one property after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVmomi import vim

from tests.waiting import wait_until

from .pyvmomi_client import Client, client

pytestmark = pytest.mark.peer

D = vim.vm.device
GIB_IN_KB = 1 << 20


@pytest.fixture(scope="module")
def lab() -> Iterator[Client]:
    with client() as connected:
        yield connected


def of(vm: Any, kind: Any) -> list[Any]:
    return [device for device in vm.config.hardware.device if isinstance(device, kind)]


def added(device: Any, **more: Any) -> Any:
    return D.VirtualDeviceSpec(operation="add", device=device, **more)


def test_a_vm_is_powered_on_reset_suspended_and_powered_off(lab: Client) -> None:
    vm = lab.vm("ml-07")
    for task, state in ((vm.PowerOn, "poweredOn"), (vm.Reset, "poweredOn"), (vm.Suspend, "suspended"),
                        (vm.PowerOn, "poweredOn"), (vm.PowerOff, "poweredOff")):  # fmt: skip
        lab.result(task())
        assert vm.runtime.powerState == state
    with pytest.raises(vim.fault.InvalidPowerState):
        lab.result(vm.PowerOff())


def test_a_snapshot_is_made_listed_reverted_to_and_removed(lab: Client) -> None:
    vm = lab.vm("ml-08")
    lab.result(vm.CreateSnapshot_Task("before", "of the driver", False, False))
    lab.change(vm, annotation="after")
    (tree,) = vm.snapshot.rootSnapshotList
    assert (tree.name, tree.description, vm.snapshot.currentSnapshot) == ("before", "of the driver", tree.snapshot)
    lab.result(tree.snapshot.RevertToSnapshot_Task())
    assert vm.config.annotation != "after"
    lab.result(tree.snapshot.RemoveSnapshot_Task(removeChildren=False))
    assert vm.snapshot is None


def test_a_template_is_cloned_and_the_clone_runs_and_is_destroyed(lab: Client) -> None:
    template, cluster = lab.vm("golden"), lab.all(vim.ClusterComputeResource)[0]
    place = vim.vm.RelocateSpec(pool=cluster.resourcePool, datastore=template.datastore[0])
    task = template.Clone(template.parent, "clone-01", vim.vm.CloneSpec(location=place, powerOn=True))
    clone = lab.result(task)
    # a task of its own, after the one that clones
    wait_until(lambda: clone.runtime.powerState == "poweredOn")
    assert (clone.name, clone.config.template) == ("clone-01", False)
    assert clone.config.uuid != template.config.uuid
    lab.result(clone.PowerOffVM_Task())
    lab.result(clone.Destroy_Task())
    assert "clone-01" not in [vm.name for vm in lab.all(vim.VirtualMachine)]


def test_a_disk_is_added_extended_and_removed_with_its_file(lab: Client) -> None:
    vm = lab.vm("ml-08")
    (scsi,) = of(vm, D.VirtualSCSIController)
    disk = D.VirtualDisk(
        key=-1, controllerKey=scsi.key, unitNumber=5, capacityInKB=10 * GIB_IN_KB,
        backing=D.VirtualDisk.FlatVer2BackingInfo(thinProvisioned=True, diskMode="persistent"),
    )  # fmt: skip
    lab.change(vm, added(disk, fileOperation="create"))
    new = next(each for each in of(vm, D.VirtualDisk) if each.unitNumber == 5)
    assert (new.deviceInfo.label, new.backing.thinProvisioned) == ("Hard disk 2", True)
    new.capacityInKB = 20 * GIB_IN_KB
    lab.change(vm, D.VirtualDeviceSpec(operation="edit", device=new))
    assert next(each for each in of(vm, D.VirtualDisk) if each.key == new.key).capacityInKB == 20 * GIB_IN_KB
    lab.change(vm, D.VirtualDeviceSpec(operation="remove", fileOperation="destroy", device=new))
    assert len(of(vm, D.VirtualDisk)) == 1


def test_a_network_card_is_added_disconnected_and_removed(lab: Client) -> None:
    vm, network = lab.vm("ml-08"), lab.named(vim.Network, "VM Network")
    backing = D.VirtualEthernetCard.NetworkBackingInfo(network=network, deviceName=network.name)
    connected = D.VirtualDevice.ConnectInfo(startConnected=True, allowGuestControl=True, connected=True)
    lab.change(vm, added(D.VirtualVmxnet3(key=-1, backing=backing, connectable=connected, addressType="assigned")))
    *_, card = of(vm, D.VirtualEthernetCard)
    assert (card.deviceInfo.label, card.backing.network) == ("Network adapter 2", network)
    assert card.macAddress.startswith("00:50:56:")
    card.connectable.startConnected = False
    lab.change(vm, D.VirtualDeviceSpec(operation="edit", device=card))
    assert of(vm, D.VirtualEthernetCard)[-1].connectable.startConnected is False
    lab.change(vm, D.VirtualDeviceSpec(operation="remove", device=card))
    assert len(of(vm, D.VirtualEthernetCard)) == 1


def test_a_cdrom_drive_is_added_gets_an_image_and_is_emptied(lab: Client) -> None:
    vm = lab.vm("ml-08")
    controller = D.VirtualAHCIController(key=-1, busNumber=0)
    drive = D.VirtualCdrom(
        key=-2, controllerKey=-1, unitNumber=0,
        backing=D.VirtualCdrom.RemotePassthroughBackingInfo(exclusive=False, deviceName=""),
        connectable=D.VirtualDevice.ConnectInfo(startConnected=True, allowGuestControl=True, connected=False),
    )  # fmt: skip
    lab.change(vm, added(controller), added(drive))
    (made,) = of(vm, D.VirtualCdrom)
    made.backing = D.VirtualCdrom.IsoBackingInfo(fileName="[lab-ds-1] iso/driver.iso")
    lab.change(vm, D.VirtualDeviceSpec(operation="edit", device=made))
    assert of(vm, D.VirtualCdrom)[0].backing.fileName == "[lab-ds-1] iso/driver.iso"
    made.backing = D.VirtualCdrom.RemotePassthroughBackingInfo(exclusive=False, deviceName="")
    lab.change(vm, D.VirtualDeviceSpec(operation="edit", device=made))
    assert isinstance(of(vm, D.VirtualCdrom)[0].backing, D.VirtualCdrom.RemotePassthroughBackingInfo)


def test_cpus_memory_notes_and_settings_are_changed(lab: Client) -> None:
    vm = lab.vm("ml-08")
    option = vim.option.OptionValue(key="pciPassthru.use64bitMMIO", value="TRUE")
    lab.change(vm, numCPUs=4, numCoresPerSocket=2, memoryMB=32768, annotation="smaller", extraConfig=[option])
    hardware = vm.config.hardware
    assert (hardware.numCPU, hardware.numCoresPerSocket, hardware.memoryMB) == (4, 2, 32768)
    assert (vm.summary.config.numCpu, vm.config.annotation) == (4, "smaller")
    assert {each.key: each.value for each in vm.config.extraConfig}["pciPassthru.use64bitMMIO"] == "TRUE"


def test_a_vgpu_is_attached_and_taken_away(lab: Client) -> None:
    vm = lab.vm("ml-07")
    backing = D.VirtualPCIPassthrough.VmiopBackingInfo(vgpu="nvidia_a40-8q")
    lab.change(vm, added(D.VirtualPCIPassthrough(key=-1, backing=backing)), memoryReservationLockedToMax=True)
    (gpu,) = of(vm, D.VirtualPCIPassthrough)
    assert gpu.backing.vgpu == "nvidia_a40-8q"
    lab.change(vm, D.VirtualDeviceSpec(operation="remove", device=gpu))
    assert of(vm, D.VirtualPCIPassthrough) == []


def test_a_vm_is_made_renamed_and_destroyed(lab: Client) -> None:
    (datacenter,) = lab.all(vim.Datacenter)
    pool = lab.all(vim.ClusterComputeResource)[0].resourcePool
    spec = vim.vm.ConfigSpec(
        name="made", memoryMB=128, numCPUs=1, guestId="otherLinux64Guest", version="vmx-19",
        files=vim.vm.FileInfo(vmPathName="[lab-ds-1] made"),
    )  # fmt: skip
    vm = lab.result(datacenter.vmFolder.CreateVM_Task(config=spec, pool=pool))
    lab.result(vm.Rename_Task("made-02"))
    assert (vm.name, vm.config.files.vmPathName) == ("made-02", "[lab-ds-1] made/made.vmx")
    with pytest.raises(vim.fault.DuplicateName):
        lab.result(datacenter.vmFolder.CreateVM_Task(config=vim.vm.ConfigSpec(
            name="made-02", files=vim.vm.FileInfo(vmPathName="[lab-ds-1]")), pool=pool))  # fmt: skip
    lab.result(vm.Destroy_Task())


def test_a_vm_is_marked_as_template_and_back(lab: Client) -> None:
    vm, cluster = lab.vm("legacy"), lab.all(vim.ClusterComputeResource)[0]
    vm.MarkAsTemplate()
    assert (vm.config.template, vm.resourcePool) == (True, None)
    vm.MarkAsVirtualMachine(pool=cluster.resourcePool, host=None)
    assert (vm.config.template, vm.resourcePool) == (False, cluster.resourcePool)


def test_a_vm_moves_to_another_host_while_it_runs(lab: Client) -> None:
    vm = lab.vm("bare")
    other = next(host for host in lab.all(vim.HostSystem) if host != vm.runtime.host)
    lab.result(vm.MigrateVM_Task(host=other, priority="defaultPriority"))
    assert vm.runtime.host == other
    lab.result(vm.Relocate(vim.vm.RelocateSpec(host=next(h for h in lab.all(vim.HostSystem) if h != other))))
    assert vm.runtime.host != other


def test_the_question_of_a_vm_is_answered(lab: Client) -> None:
    vm = lab.vm("asking")
    question = vm.runtime.question
    choices = {each.label: each.key for each in question.choice.choiceInfo}
    vm.AnswerVM(question.id, choices["Retry"])
    assert vm.runtime.question is None


def test_the_guest_of_a_vm_is_read_once_its_tools_run(lab: Client) -> None:
    vm = lab.vm("vdi-01")
    wait_until(lambda: vm.guest.toolsRunningStatus == "guestToolsRunning")
    guest = vm.guest
    assert (guest.guestState, guest.guestFamily) == ("running", "windowsGuest")
    assert [nic.macAddress for nic in guest.net] == [card.macAddress for card in of(vm, D.VirtualEthernetCard)]
    assert guest.ipAddress in guest.net[0].ipAddress
    assert all(disk.capacity >= disk.freeSpace for disk in guest.disk)


def test_a_vm_is_found_by_each_of_its_names(lab: Client) -> None:
    index, vm = lab.content.searchIndex, lab.vm("vdi-01")
    assert index.FindByUuid(None, vm.config.uuid, True, False) == vm
    assert index.FindByUuid(None, vm.config.instanceUuid, True, True) == vm
    assert index.FindByIp(None, vm.guest.ipAddress, True) == vm
    assert index.FindByDnsName(None, vm.guest.hostName, True) == vm
    assert index.FindByInventoryPath("lab-dc/vm/vdi/vdi-01") == vm
    assert index.FindByInventoryPath("lab-dc/vm/vdi/none") is None


def test_a_custom_attribute_is_defined_and_set(lab: Client) -> None:
    vm, manager = lab.vm("ml-07"), lab.content.customFieldsManager
    field = manager.AddCustomFieldDef(name="rack", moType=vim.VirtualMachine)
    manager.SetField(entity=vm, key=field.key, value="r1")
    assert {each.key: each.value for each in vm.customValue}[field.key] == "r1"
    manager.RemoveCustomFieldDef(field.key)
    assert field.key not in [each.key for each in vm.customValue]
