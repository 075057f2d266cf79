"""CreateVM_Task: a bare VM, powered off, of what its spec says; anything else is refused by name."""

from __future__ import annotations

import pytest
from pyVmomi import vim, vmodl

from tests.sim.lab import Lab


def spec(name: str = "small", **fields: object) -> vim.vm.ConfigSpec:
    files = vim.vm.FileInfo(vmPathName="[lab-ds-1]")
    return vim.vm.ConfigSpec(**{"name": name, "files": files, "numCPUs": 1, "memoryMB": 4, **fields})


@pytest.mark.long
def test_it_is_there_and_can_be_changed(lab: Lab) -> None:
    home, host = lab.datacenter().vmFolder, lab.host("esx-01.lab")
    vm = lab.run(home.CreateVM_Task(spec(annotation="mine"), host.parent.resourcePool, host))
    assert (vm.name, vm.runtime.powerState, vm.runtime.host, vm.parent) == ("small", "poweredOff", host, home)
    assert (vm.config.hardware.memoryMB, vm.config.annotation, vm.summary.config.numVirtualDisks) == (4, "mine", 0)
    assert not [device for device in vm.config.hardware.device if isinstance(device, vim.vm.device.VirtualDisk)]
    assert [change.method for change in lab.world.ledger] == ["CreateVM_Task"]
    lab.run(vm.ReconfigVM_Task(vim.vm.ConfigSpec(extraConfig=[vim.option.OptionValue(key="a", value="b")])))
    assert {option.key: option.value for option in vm.config.extraConfig}["a"] == "b"


@pytest.mark.parametrize("path", ["[lab-ds-1] small", "[lab-ds-1] small/", "[lab-ds-1] small/small.vmx"])
def test_its_folder_may_be_named(lab: Lab, path: str) -> None:
    config_spec = spec(files=vim.vm.FileInfo(vmPathName=path), version="vmx-19")
    vm = lab.run(lab.datacenter().vmFolder.CreateVM_Task(config_spec, lab.cluster().resourcePool))
    assert (vm.config.files.vmPathName, vm.config.version) == ("[lab-ds-1] small/small.vmx", "vmx-19")


@pytest.mark.parametrize(
    ("config_spec", "fault"),
    [
        (spec("ml"), vim.fault.DuplicateName),
        (spec(files=vim.vm.FileInfo(vmPathName="[elsewhere]")), vim.fault.InvalidDatastorePath),
        (spec(files=vim.vm.FileInfo(vmPathName="lab-ds-1")), vim.fault.InvalidDatastorePath),
        (spec(guestId="noSuchGuest"), vmodl.fault.InvalidArgument),
        (spec(files=None), vmodl.fault.InvalidArgument),
        (spec(files=vim.vm.FileInfo(vmPathName="[lab-ds-1] other/small.vmx")), vmodl.fault.NotSupported),
        (spec(version="vmx-99"), vmodl.fault.NotSupported),
        (spec(changeTrackingEnabled=True), vmodl.fault.NotSupported),
    ],
)
def test_what_is_refused_leaves_nothing(lab: Lab, config_spec: vim.vm.ConfigSpec, fault: type[Exception]) -> None:
    before = len(list(lab.world.by_type("VirtualMachine")))
    with pytest.raises(fault):
        lab.run(lab.datacenter().vmFolder.CreateVM_Task(config_spec, lab.host("esx-01.lab").parent.resourcePool))
    assert len(list(lab.world.by_type("VirtualMachine"))) == before
    assert list(lab.world.ledger) == []


@pytest.mark.parametrize("privilege", ["VirtualMachine.Inventory.Create", "Resource.AssignVMToPool"])
def test_who_may_not_is_refused(lab: Lab, privilege: str) -> None:
    authority = lab.world.authority
    granted = {"VirtualMachine.Inventory.Create", "Resource.AssignVMToPool", "Datastore.AllocateSpace"} - {privilege}
    pool = lab.host("esx-01.lab").parent.resourcePool
    user = next(iter(lab.world.sessions)).user
    authority.permit(user, authority.add_role("maker", granted))
    with pytest.raises(vim.fault.NoPermission) as refused:
        lab.run(lab.datacenter().vmFolder.CreateVM_Task(spec(), pool))
    assert refused.value.privilegeId == privilege


def test_files_of_one_name_are_told_apart(lab: Lab) -> None:
    lab.run(lab.vm("ml-07").Rename_Task("other"))
    vm = lab.run(lab.datacenter().vmFolder.CreateVM_Task(spec("ml-07"), lab.cluster().resourcePool))
    assert vm.config.files.vmPathName == "[lab-ds-1] ml-07_1/ml-07_1.vmx"
