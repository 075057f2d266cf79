"""VMs that leave the inventory and come back from their files, and instant clones, through the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.sim.server import start
from tests.sim.conftest import connect
from tests.sim.lab import Lab, served

pytestmark = pytest.mark.long

STORE = "[lab-ds-1]"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with served() as lab:
        yield lab


def register(lab: Lab, path: str, name: str | None = None, **where: Any) -> Any:
    template = where.pop("asTemplate", False)
    given = where or {"pool": lab.cluster().resourcePool}
    task = lab.datacenter().vmFolder.RegisterVM_Task(path=path, name=name, asTemplate=template, **given)
    return lab.run(task)


@pytest.mark.long
def test_a_vm_comes_back_from_its_files(lab: Lab) -> None:
    old = lab.vm("ml-07")
    lab.run(old.CreateSnapshot_Task("one", "", False, False))
    lab.run(old.ReconfigVM_Task(vim.vm.ConfigSpec(annotation="after")))
    uuid, disks = old.config.uuid, old.summary.config.numVirtualDisks
    old.UnregisterVM()
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        old.name  # noqa: B018
    vm = register(
        lab, f"{STORE} ml-07/ml-07.vmx", "again", host=lab.host("esx-02.lab"), pool=lab.cluster().resourcePool
    )
    assert (vm.name, vm.config.uuid, vm.summary.config.numVirtualDisks) == ("again", uuid, disks)
    assert (vm.runtime.host.name, vm.parent, vm.config.annotation) == ("esx-02.lab", lab.datacenter().vmFolder, "after")
    assert vm.config.files.vmPathName == f"{STORE} ml-07/ml-07.vmx"
    assert vm.snapshot.currentSnapshot == vm.snapshot.rootSnapshotList[0].snapshot != None  # noqa: E711
    lab.run(vm.RevertToCurrentSnapshot_Task())
    assert vm.config.annotation == ""
    lab.run(vm.PowerOnVM_Task())
    with pytest.raises(vim.fault.InvalidPowerState):
        vm.UnregisterVM()


@pytest.mark.long
def test_a_suspended_vm_keeps_its_space_and_a_template_its_host(lab: Lab) -> None:
    store = lab.vm("ml-08").datastore[0]
    lab.power_on("ml-08")
    lab.run(lab.vm("ml-08").SuspendVM_Task())
    free = store.summary.freeSpace
    lab.vm("ml-08").UnregisterVM()
    assert store.summary.freeSpace == free
    vm = register(lab, f"{STORE} ml-08/ml-08.vmx")
    assert (vm.runtime.powerState, store.summary.freeSpace) == ("suspended", free)
    lab.run(vm.PowerOffVM_Task())
    vm.UnregisterVM()
    template = register(lab, f"{STORE} ml-08/ml-08.vmx", asTemplate=True, host=lab.host("esx-01.lab"))
    assert (template.config.template, template.resourcePool) == (True, None)


@pytest.mark.long
def test_what_cannot_be_registered(lab: Lab) -> None:
    pool = lab.cluster().resourcePool
    with pytest.raises(vim.fault.AlreadyExists):
        register(lab, f"{STORE} ml-07/ml-07.vmx")
    with pytest.raises(vim.fault.NotFound, match=r"nobody/nobody\.vmx"):
        register(lab, f"{STORE} nobody/nobody.vmx")
    with pytest.raises(vim.fault.InvalidDatastorePath):
        register(lab, "ml-07/ml-07.vmx")
    with pytest.raises(vim.fault.InvalidDatastorePath):
        register(lab, "[elsewhere] ml-07/ml-07.vmx")
    lab.vm("ml-07").UnregisterVM()
    for wrong in ({"asTemplate": True, "pool": pool}, {"asTemplate": True}, {"host": lab.host("esx-01.lab")}):
        with pytest.raises(vmodl.fault.InvalidArgument):
            register(lab, f"{STORE} ml-07/ml-07.vmx", **wrong)
    lab.datacenter().vmFolder.CreateFolder("taken")
    with pytest.raises(vim.fault.DuplicateName):
        register(lab, f"{STORE} ml-07/ml-07.vmx", "taken")
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(lab.datacenter().hostFolder.RegisterVM_Task(f"{STORE} ml-07/ml-07.vmx", None, False, pool))


def test_files_of_one_name_are_told_apart(lab: Lab) -> None:
    lab.vm("ml-07").UnregisterVM()
    spec = vim.vm.ConfigSpec(name="ml-07", files=vim.vm.FileInfo(vmPathName=STORE), memoryMB=4)
    made = lab.run(lab.datacenter().vmFolder.CreateVM_Task(spec, lab.cluster().resourcePool))
    assert made.config.files.vmPathName == f"{STORE} ml-07_1/ml-07_1.vmx"
    lab.run(made.Destroy_Task())
    with pytest.raises(vim.fault.NotFound):
        register(lab, f"{STORE} ml-07_1/ml-07_1.vmx")


@pytest.mark.long
def test_a_saved_state_knows_the_files_of_unregistered_vms(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    with start("lab", tls=False, clock="stepped", state=file) as server:
        lab = Lab(server.world, connect(server))
        lab.vm("ml-07").UnregisterVM()
        Disconnect(lab.si)
    with start("lab", tls=False, clock="stepped", state=file) as server:
        lab = Lab(server.world, connect(server))
        assert register(lab, f"{STORE} ml-07/ml-07.vmx").name == "ml-07"
        Disconnect(lab.si)


def instant(lab: Lab, source: str, name: str = "clone", **location: Any) -> Any:
    spec = vim.vm.InstantCloneSpec(
        name=name,
        location=vim.vm.RelocateSpec(**location),
        config=[vim.option.OptionValue(key="guestinfo.role", value="worker")],
        biosUuid="12345678-abcd-1234-cdef-123456789abc",
    )
    return lab.run(lab.vm(source).InstantClone_Task(spec))


@pytest.mark.long
def test_an_instant_clone_runs_where_its_source_does(lab: Lab) -> None:
    lab.power_on("ml-08")
    source = lab.vm("ml-08")
    lab.let_pass(100)
    made = instant(lab, "ml-08")
    assert (made.runtime.powerState, made.runtime.host, made.runtime.bootTime) == (
        "poweredOn",
        source.runtime.host,
        source.runtime.bootTime,
    )
    assert made.parent == lab.datacenter().vmFolder
    assert made.config.uuid == "12345678-abcd-1234-cdef-123456789abc"
    assert {"guestinfo.role": "worker"}.items() <= {each.key: each.value for each in made.config.extraConfig}.items()
    macs = [
        card.macAddress for vm in (source, made) for card in vm.config.hardware.device if hasattr(card, "macAddress")
    ]
    assert len({*macs}) == len(macs) == 2


@pytest.mark.long
def test_what_has_no_instant_clone(lab: Lab) -> None:
    with pytest.raises(vim.fault.InvalidPowerState):
        instant(lab, "ml-07")
    with pytest.raises(vim.fault.DisallowedMigrationDeviceAttached):
        instant(lab, "vdi-01")
    lab.power_on("ml-08", "esx-01.lab")
    with pytest.raises(vim.fault.DuplicateName):
        instant(lab, "ml-08", "ml-08", folder=lab.vm("ml-08").parent)
    with pytest.raises(vmodl.fault.InvalidArgument):
        instant(lab, "ml-08", host=lab.host("esx-02.lab"))
    with pytest.raises(vmodl.fault.NotSupported, match="diskMoveType"):
        instant(lab, "ml-08", diskMoveType="moveAllDiskBackingsAndDisallowSharing")
    disk = vim.vm.device.VirtualDeviceSpec(operation="remove", device=vim.vm.device.VirtualDisk(key=2000))
    with pytest.raises(vmodl.fault.NotSupported, match="network cards"):
        instant(lab, "ml-08", deviceChange=[disk])
    assert [vm.name for vm in lab.world.by_type("VirtualMachine") if vm.name == "clone"] == []
