"""A world saved and restored is the world it was, as pyVmomi reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim

from gpuops.errors import StateDamaged
from gpuops.sim.server import start
from tests.sim.lab import Lab, category_spec, connect

pytestmark = pytest.mark.long


def describe_lab(lab: Lab) -> dict[str, Any]:
    """What clients can read of every VM and host."""
    vms = {
        vm.moid: [
            vm.name,
            vm.state.power.value,
            vm.state.host,
            vm.state.folder,
            vm.state.change_version,
            [str(device.backing) for device in vm.state.devices],
            [(seat.pci_id, seat.type.name, seat.start) for seat in vm.state.seats],
            [tree.name for tree in vm.state.snapshots],
            dict(vm.attributes),
        ]
        for vm in lab.world.by_type("VirtualMachine")
    }
    hosts = {
        host.moid: [sorted(host.state.vms), [(gpu.mode, gpu.passthrough_enabled) for gpu in host.state.gpus]]
        for host in lab.world.by_type("HostSystem")
    }
    stores = {store.moid: [store.free_mib, sorted(store.vms)] for store in lab.world.by_type("Datastore")}
    clusters = {cluster.moid: cluster.drs for cluster in lab.world.by_type("ClusterComputeResource")}
    return {"vms": vms, "hosts": hosts, "stores": stores, "clusters": clusters}


@contextmanager
def run(scenario: str, state: Path) -> Iterator[Lab]:
    """One run of a server that keeps its state."""
    with start(scenario, tls=False, clock="stepped", state=state) as server:
        si = connect(server)
        try:
            yield Lab(server.world, si)
        finally:
            Disconnect(si)
        assert server.world.bugs == []


def change_much(lab: Lab) -> None:
    lab.attach("ml-07", "grid_a100-3-20c")
    lab.power_on("ml-07")
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    lab.run(lab.vm("legacy").Destroy_Task())
    folder = lab.datacenter().vmFolder.CreateFolder("night")
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=lab.vm("ml-01").resourcePool), template=False)
    lab.run(lab.vm("ml-01").CloneVM_Task(folder, "copy-01", spec))
    lab.run(lab.vm("copy-01").CreateSnapshot_Task("clean", "", memory=False, quiesce=False))
    fields = lab.si.content.customFieldsManager
    field_definition = fields.AddCustomFieldDef("gpuops.rotation", vim.VirtualMachine)
    fields.SetField(lab.vm("vdi-01"), field_definition.key, "tonight")
    change = vim.host.PciPassthruConfig(id="0000:af:00.0", passthruEnabled=True)
    lab.host("esx-01.lab").configManager.pciPassthruSystem.UpdatePassthruConfig([change])
    override = vim.cluster.DrsVmConfigInfo(key=lab.vm("vdi-01"), behavior="manual")
    specs = [vim.cluster.DrsVmConfigSpec(operation="add", info=override)]
    lab.run(lab.cluster().ReconfigureComputeResource_Task(vim.cluster.ConfigSpecEx(drsVmConfigSpec=specs), True))


@pytest.mark.long
def test_next_run_goes_on_where_the_last_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with run("lab", state) as lab:
        change_much(lab)
        before, stopped_at = describe_lab(lab), lab.world.clock.now()
    with run("lab", state) as lab:
        assert lab.world.clock.now() >= stopped_at
        assert describe_lab(lab) == before
        lab.power_off("ml-07")
        lab.power_on("vdi-01", "esx-01.lab")
        uuids = {vm.state.uuid for vm in lab.world.by_type("VirtualMachine")}
        pool, folder = lab.vm("ml-01").resourcePool, lab.vm("ml-01").parent
        spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=pool), template=False)
        clone = lab.run(lab.vm("ml-01").CloneVM_Task(folder, "copy-02", spec))
        assert clone.config.uuid not in uuids


def test_the_ledger_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What a night did in one run is still told in the next, and new effects come after it."""
    state = tmp_path / "state.json"
    with run("lab", state) as lab:
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
        before = lab.world.ledger.to_json()
    assert [(entry["sequence"], entry["name"]) for entry in before] == [(1, "vdi-01")]
    with run("lab", state) as lab:
        assert lab.world.ledger.to_json() == before
        lab.run(lab.vm("vdi-02").SuspendVM_Task())
        assert [(change.sequence, change.name) for change in lab.world.ledger] == [(1, "vdi-01"), (2, "vdi-02")]
        assert [entry["name"] for entry in lab.world.ledger.to_json(after_sequence=1)] == ["vdi-02"]


def starts_of(lab: Lab, name: str) -> list[tuple[str, str]]:
    """(id, user) of each task of a VM in the task history that powered it on."""
    entity = vim.TaskFilterSpec.ByEntity(entity=lab.vm(name), recursion="self")
    collector = lab.si.content.taskManager.CreateCollectorForTasks(vim.TaskFilterSpec(entity=entity))
    tasks = collector.ReadNextTasks(100)
    collector.DestroyCollector()
    return [(task.key, task.reason.userName) for task in tasks if task.descriptionId == "VirtualMachine.powerOn"]


def test_the_task_history_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """It tells who started a VM: a night that was killed is finished by it."""
    state = tmp_path / "state.json"
    with run("lab", state) as lab:
        lab.power_on("ml-07", "esx-01.lab")
        [before] = starts_of(lab, "ml-07")
    with run("lab", state) as lab:
        assert starts_of(lab, "ml-07") == [before]
        lab.power_off("ml-07")
        lab.power_on("ml-07", "esx-01.lab")
        first, second = starts_of(lab, "ml-07")
        assert first == before
        assert second[0] != first[0], "an id is given once"


def tag_names(lab: Lab, name: str) -> list[str]:
    """The names of the tags of a VM, as a client of the tagging service reads them."""
    store, vm = lab.world.tags, {"object_id": {"type": "VirtualMachine", "id": lab.vm(name)._moId}}
    ids = store.invoke("com.vmware.cis.tagging.tag_association", "list_attached_tags", vm)
    return [store.invoke("com.vmware.cis.tagging.tag", "get", {"tag_id": tag_id}).fields["name"] for tag_id in ids]


def test_tags_are_kept_and_can_be_changed_after(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    tagging = "com.vmware.cis.tagging"
    with run("lab", state) as lab:
        store = lab.world.tags
        spec = category_spec("rotation", "VirtualMachine")
        category = store.invoke(f"{tagging}.category", "create", {"create_spec": spec})
        create_spec = {"create_spec": {"name": "night", "description": "", "category_id": category}}
        tag = store.invoke(f"{tagging}.tag", "create", create_spec)
        vm = {"type": "VirtualMachine", "id": lab.vm("vdi-01")._moId}
        store.invoke(f"{tagging}.tag_association", "attach", {"tag_id": tag, "object_id": vm})
        category_before = store.invoke(f"{tagging}.category", "get", {"category_id": category})
    with run("lab", state) as lab:
        store = lab.world.tags
        assert (tag_names(lab, "vdi-01"), tag_names(lab, "vdi-02")) == (["night"], [])
        assert store.invoke(f"{tagging}.category", "get", {"category_id": category}) == category_before
        spec = {"name": "day", "description": "", "category_id": category}
        second_tag = store.invoke(f"{tagging}.tag", "create", {"create_spec": spec})
        assert second_tag != tag
        store.invoke(f"{tagging}.tag_association", "detach", {"tag_id": tag, "object_id": vm})
        assert tag_names(lab, "vdi-01") == []


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with run("vdi", state) as lab:
        lab.run(lab.vm("vdi-001").SuspendVM_Task())
        moid = lab.vm("vdi-001")._moId
    saved = json.loads(state.read_text(encoding="utf-8"))
    assert list(saved["vms"]) == [moid]
    assert (saved["hosts"], saved["clusters"], saved["removed"]) == ({}, {}, {"vms": [], "others": []})


@pytest.mark.long
def test_a_ledger_that_was_cut_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with run("lab", state) as lab:
        for name in ("vdi-01", "vdi-02"):
            lab.run(lab.vm(name).SuspendVM_Task())
    document = json.loads(state.read_text(encoding="utf-8"))
    del document["ledger"][0]
    state.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(StateDamaged, match="the entries of its ledger are not numbered"):
        start("lab", tls=False, clock="stepped", state=state)


@pytest.mark.parametrize("key", ["host", "pool", "folder", "datastore"])
def test_a_vm_with_an_unknown_id_is_refused(tmp_path: Path, key: str) -> None:
    state = tmp_path / "state.json"
    with run("lab", state) as lab:
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
    document = json.loads(state.read_text(encoding="utf-8"))
    [vm] = document["vms"].values()
    vm[key] = "unknown-1"
    state.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(StateDamaged, match="it refers to 'unknown-1', which does not exist"):
        start("lab", tls=False, clock="stepped", state=state)


@pytest.mark.parametrize("section", ["hosts", "clusters", "datastores", "places"])
def test_an_unknown_id_of_a_section_is_refused(tmp_path: Path, section: str) -> None:
    state = tmp_path / "state.json"
    with run("lab", state):
        pass
    document = json.loads(state.read_text(encoding="utf-8"))
    document[section]["unknown-1"] = {}
    state.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(StateDamaged, match="it refers to 'unknown-1', which does not exist"):
        start("lab", tls=False, clock="stepped", state=state)


@pytest.mark.long
@pytest.mark.parametrize("text", ["{}", "[]", "not json", '{"format": 3, "scenario": "vdi", "seed": 0}'])
def test_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text, encoding="utf-8")
    with pytest.raises(StateDamaged, match="is not the state of this scenario"):
        start("lab", tls=False, clock="stepped", state=state)


@pytest.mark.long
def test_what_is_set_on_devices_that_are_no_gpu_is_kept(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with run("accelerators", state) as lab:
        host = next(host for host in lab.world.by_type("HostSystem") if host.name == "esx-02.acc")
        config = vim.host.PciPassthruConfig(id="0000:af:00.0", passthruEnabled=True, hardwareLabel="fast")
        moid = host.read("configManager").pciPassthruSystem._moId
        vim.host.PciPassthruSystem(moid, lab.si._stub).UpdatePassthruConfig([config])
    with run("accelerators", state) as lab:
        host = next(host for host in lab.world.by_type("HostSystem") if host.name == "esx-02.acc")
        device = host.state.device("0000:AF:00.0")
        assert (device.passthrough_enabled, device.passthrough_active, device.label) == (True, False, "fast")
        assert host.state.reboot_required
