"""The inventory over the vSphere Automation API: read by the unmodified SDK, and over REST in both of its shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim

from gpuops.sim.objects.folder import Network
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import NO_ACCESS, READ_ONLY
from gpuops.sim.wire.automation.inventory_reads import BY_NAME
from gpuops.sim.wire.automation.vm_values import guest_os
from tests.sim.lab import Lab, connect
from tests.sim.wire.automation_clients import Rest, sdk_client

pytestmark = pytest.mark.long

D = vim.vm.device
KINDS = {
    "VM": vim.VirtualMachine,
    "Host": vim.HostSystem,
    "Cluster": vim.ClusterComputeResource,
    "Datastore": vim.Datastore,
    "Datacenter": vim.Datacenter,
    "Folder": vim.Folder,
    "Network": vim.Network,
    "ResourcePool": vim.ResourcePool,
}


KEYS = {"ResourcePool": "resource_pool"}
"""Fields with the identifier that are not the name of the service in lower case."""


@pytest.fixture
def server_with_tls() -> Iterator[SimServer]:
    """Over TLS: the SDK knows nothing else."""
    with SimServer(build("lab")) as server:
        yield server
    assert server.world.bugs == []


@pytest.fixture
def lab(server_with_tls: SimServer) -> Iterator[Lab]:
    si = connect(server_with_tls)
    yield Lab(server_with_tls.world, si)
    Disconnect(si)


@pytest.fixture
def client(server_with_tls: SimServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    return sdk_client(server_with_tls, monkeypatch)


@pytest.fixture
def rest() -> Iterator[Rest]:
    with SimServer(build("lab"), tls=False) as server:
        connection = Rest(server)
        yield connection
        connection.close()
    assert server.world.bugs == []


@pytest.mark.long
def test_sdk_lists_what_soap_clients_see(lab: Lab, client: Any) -> None:
    content = lab.si.content
    for name, kind in KINDS.items():
        entities = content.viewManager.CreateContainerView(content.rootFolder, [kind], True).view
        listed = {
            getattr(summary, KEYS.get(name, name.lower())): summary.name
            for summary in getattr(client.vcenter, name).list()
        }
        expected = {obj._moId: obj.name for obj in entities}
        if name == "Folder":
            expected[content.rootFolder._moId] = "Datacenters"
        if name == "VM":
            del expected[lab.vm("golden")._moId]  # a template
        assert listed == expected, name


def test_sdk_reads_one_of_each(lab: Lab, client: Any) -> None:
    vcenter, cluster, datacenter = client.vcenter, lab.cluster(), lab.datacenter()
    detail = vcenter.Cluster.get(cluster._moId)
    assert (detail.name, detail.resource_pool) == ("lab-cluster", cluster.resourcePool._moId)
    assert [(summary.ha_enabled, summary.drs_enabled) for summary in vcenter.Cluster.list()] == [(False, True)]
    folders = vcenter.Datacenter.get(datacenter._moId)
    assert (folders.vm_folder, folders.host_folder) == (datacenter.vmFolder._moId, datacenter.hostFolder._moId)
    store = datacenter.datastore[0]
    detail = vcenter.Datastore.get(store._moId)
    assert (detail.name, detail.type, detail.accessible) == ("lab-ds-1", "VMFS", True)
    assert (detail.free_space, detail.multiple_host_access) == (store.summary.freeSpace, True)
    pool = vcenter.ResourcePool.get(cluster.resourcePool._moId)
    assert (pool.name, pool.memory_allocation.shares.level) == ("Resources", "NORMAL")
    (host, _) = vcenter.Host.list()
    assert (host.connection_state, host.power_state) == ("CONNECTED", "POWERED_ON")
    types = {summary.name: summary.type for summary in vcenter.Folder.list()}
    assert (types["Datacenters"], types["vm"], types["ml"]) == ("DATACENTER", "VIRTUAL_MACHINE", "VIRTUAL_MACHINE")


def test_sdk_reads_a_vm_with_its_hardware(lab: Lab, client: Any) -> None:
    drive = D.VirtualCdrom(
        key=-1, controllerKey=200, unitNumber=0, backing=D.VirtualCdrom.IsoBackingInfo(fileName="[lab-ds-1] a.iso")
    )
    network = lab.datacenter().network[0]
    backing = D.VirtualEthernetCard.NetworkBackingInfo(network=network, deviceName=network.name)
    old_card = D.VirtualE1000(key=-2, backing=backing, addressType="manual", macAddress="00:50:56:00:00:01")
    added = [D.VirtualDeviceSpec(operation="add", device=device) for device in (drive, old_card)]
    lab.run(lab.vm("ml-07").ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=added)))
    order = [
        vim.vm.BootOptions.BootableDiskDevice(deviceKey=2000),
        vim.vm.BootOptions.BootableEthernetDevice(deviceKey=4000),
        vim.vm.BootOptions.BootableCdromDevice(),
    ]
    boot = vim.vm.BootOptions(bootDelay=3000, bootOrder=order)
    lab.run(lab.vm("ml-07").ReconfigVM_Task(vim.vm.ConfigSpec(bootOptions=boot)))
    vm = lab.vm("ml-07")
    vm_info = client.vcenter.VM.get(vm._moId)
    config = vm.config
    assert (vm_info.name, vm_info.power_state, vm_info.guest_os) == ("ml-07", "POWERED_OFF", "UBUNTU_64")
    assert (vm_info.identity.bios_uuid, vm_info.identity.instance_uuid) == (config.uuid, config.instanceUuid)
    assert (vm_info.cpu.count, vm_info.memory.size_mib) == (config.hardware.numCPU, config.hardware.memoryMB)
    assert (vm_info.hardware.version, vm_info.boot.type) == (config.version.upper().replace("-", "_"), "EFI")
    assert (vm_info.boot.delay, vm_info.boot.retry, vm_info.boot.network_protocol) == (3000, False, "IPV4")
    entries = [(boot_device.type, boot_device.disks, boot_device.nic) for boot_device in vm_info.boot_devices]
    assert entries == [("DISK", ["2000"], None), ("ETHERNET", None, "4000"), ("CDROM", None, None)]
    (disk,) = (device for device in config.hardware.device if isinstance(device, D.VirtualDisk))
    file: Any = disk.backing
    disk_info = vm_info.disks[str(disk.key)]
    assert (disk_info.label, disk_info.type, disk_info.scsi.bus, disk_info.scsi.unit) == ("Hard disk 1", "SCSI", 0, 0)
    assert (disk_info.backing.vmdk_file, disk_info.capacity) == (file.fileName, disk.capacityInBytes)
    assert [adapter.type for adapter in vm_info.scsi_adapters.values()] == ["PVSCSI"]
    assert [nic.type for nic in vm_info.nics.values()] == ["VMXNET3", "E1000"]
    assert {nic.backing.network for nic in vm_info.nics.values()} == {network._moId}
    (cdrom,) = vm_info.cdroms.values()
    assert (cdrom.backing.type, cdrom.backing.iso_file) == ("ISO_FILE", "[lab-ds-1] a.iso")
    assert (cdrom.type, cdrom.ide.primary, cdrom.ide.master, cdrom.state) == ("IDE", True, True, "NOT_CONNECTED")
    assert (vm_info.floppies, vm_info.serial_ports, vm_info.nvme_adapters) == ({}, {}, {})


def test_sdk_filters(lab: Lab, client: Any) -> None:
    vcenter = client.vcenter
    spec = vcenter.VM.FilterSpec
    (summary,) = vcenter.VM.list(spec(names={"ml-07", "no such"}, power_states={"POWERED_OFF"}))
    assert (summary.vm, summary.cpu_count) == (lab.vm("ml-07")._moId, lab.vm("ml-07").config.hardware.numCPU)
    assert vcenter.VM.list(spec(names={"ml-07"}, power_states={"POWERED_ON"})) == []
    assert len(vcenter.VM.list(spec(names=set()))) == len(vcenter.VM.list())
    hosts = vcenter.Host.FilterSpec
    assert vcenter.Host.list(hosts(standalone=True)) == []
    # the SDK is newer than the server here: it sends the filter's host_uuids too, unset
    assert len(vcenter.Host.list(hosts(standalone=False, clusters={lab.cluster()._moId}))) == 2


@pytest.mark.long
def test_sdk_meets_typed_errors(lab: Lab, client: Any) -> None:
    from com.vmware.vapi.std.errors_client import InvalidArgument, NotFound, Unsupported

    with pytest.raises(NotFound) as missing:
        client.vcenter.VM.get("vm-none")
    (message,) = missing.value.messages
    instance = lab.si.content.about.instanceUuid
    assert message.id == "com.vmware.api.vcenter.vm.not_found"
    assert message.default_message == f"Virtual machine with identifier 'vm-none:{instance}' does not exist."
    with pytest.raises(NotFound):
        client.vcenter.VM.get(lab.host("esx-01.lab")._moId)
    with pytest.raises(InvalidArgument):
        client.vcenter.VM.list(client.vcenter.VM.FilterSpec(power_states={"SLEEPING"}))
    with pytest.raises(Unsupported, match=r"The operation delete of com\.vmware\.vcenter\.VM is not simulated"):
        client.vcenter.VM.delete(lab.vm("ml-07")._moId)
    assert lab.vm("ml-07").name == "ml-07"


def names(answer: tuple[int, Any]) -> list[str]:
    assert answer[0] == 200
    summaries = answer[1]["value"] if isinstance(answer[1], dict) else answer[1]
    return sorted(summary["name"] for summary in summaries)


@pytest.mark.long
def test_both_shapes_of_rest_filter_alike(rest: Rest) -> None:
    folder, cluster = rest.moid("ml", "Folder"), rest.moid("lab-cluster", "ClusterComputeResource")
    host, store = rest.moid("esx-02.lab", "HostSystem"), rest.moid("lab-ds-1", "Datastore")
    datacenter = rest.moid("lab-dc", "Datacenter")
    pool = rest.moid("Resources", "ResourcePool")
    world = rest.server.world
    vms = [vm for vm in world.by_type("VirtualMachine") if not vm.state.is_template]
    on_host = sorted(vm.name for vm in vms if vm.read("runtime.host").moid == host)
    in_folder = sorted(vm.name for vm in vms if vm.parent == folder)
    every = sorted(vm.name for vm in vms)
    assert on_host and in_folder and len(in_folder) < len(every)
    cases: list[tuple[str, dict[str, list[str]], list[str]]] = [
        ("vm", {"names": ["ml-07", "ml-08"]}, ["ml-07", "ml-08"]),
        ("vm", {"vms": [rest.moid("ml-07")]}, ["ml-07"]),
        ("vm", {"names": ["ml-07"], "power_states": ["POWERED_ON", "SUSPENDED"]}, []),
        ("vm", {"folders": [folder]}, in_folder),
        ("vm", {"folders": [rest.moid("vm", "Folder")]}, []),
        ("vm", {"hosts": [host]}, on_host),
        ("vm", {"clusters": [cluster], "datacenters": [datacenter], "resource_pools": [pool]}, every),
        ("vm", {"clusters": [datacenter]}, []),
        ("host", {"hosts": [host], "connection_states": ["CONNECTED"]}, ["esx-02.lab"]),
        ("host", {"standalone": ["true"]}, []),
        ("host", {"standalone": ["false"], "folders": [rest.moid("host", "Folder")]}, ["esx-01.lab", "esx-02.lab"]),
        ("cluster", {"clusters": [cluster], "folders": [rest.moid("host", "Folder")]}, ["lab-cluster"]),
        ("datastore", {"datastores": [store], "types": ["VMFS"]}, ["lab-ds-1"]),
        ("datastore", {"types": ["NFS"]}, []),
        ("datacenter", {"folders": ["group-d1"]}, ["lab-dc"]),
        ("folder", {"type": ["NETWORK"], "datacenters": [datacenter]}, ["network"]),
        ("folder", {"parent_folders": [rest.moid("vm", "Folder")], "names": ["ml"]}, ["ml"]),
        ("network", {"types": ["STANDARD_PORTGROUP"]}, ["VM Network"]),
        ("resource-pool", {"clusters": [cluster], "resource_pools": [pool]}, ["Resources"]),
        ("resource-pool", {"parent_resource_pools": [pool]}, []),
        ("resource-pool", {"hosts": [host]}, []),
    ]
    for path, filters, expected in cases:
        new = urlencode(filters, doseq=True)
        old = urlencode({f"filter.{name}": values for name, values in filters.items()}, doseq=True)
        numbered = urlencode(
            {f"filter.{name}.{n}": value for name, values in filters.items() for n, value in enumerate(values, 1)}
        )
        targets = [f"/api/vcenter/{path}?{new}", f"/rest/vcenter/{path}?{old}"]
        if path != "folder" and "standalone" not in filters:
            targets.append(f"/rest/com/vmware/vcenter/{path}?{numbered}")
        for target in targets:
            assert names(rest("GET", target)) == expected, target


@pytest.mark.long
def test_the_shapes_differ_as_documented(rest: Rest) -> None:
    vm = rest.moid("ml-07")
    (summary,) = rest("GET", "/api/vcenter/vm?names=ml-07")[1]
    assert (summary["vm"], summary["power_state"]) == (vm, "POWERED_OFF")
    assert {"cpu_count", "memory_size_MiB"} < set(summary)
    assert rest("GET", "/rest/vcenter/vm?filter.names=ml-07")[1] == {"value": [summary]}
    new, old = rest("GET", f"/api/vcenter/vm/{vm}")[1], rest("GET", f"/rest/vcenter/vm/{vm}")[1]["value"]
    assert list(new["disks"]) == ["2000"]
    assert old["disks"] == [{"key": "2000", "value": new["disks"]["2000"]}]
    assert (new["guest_OS"], new["memory"]["size_MiB"]) == ("UBUNTU_64", summary["memory_size_MiB"])
    assert "upgrade_version" not in new["hardware"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("verb", "path", "status", "kind"),
    [
        ("GET", "vm/vm-none", 404, "NOT_FOUND"),
        ("GET", "cluster/host-1", 404, "NOT_FOUND"),
        ("GET", "resource-pool/none", 404, "NOT_FOUND"),
        ("GET", "no-such-kind", 404, "NOT_FOUND"),
        ("GET", "host/{host}", 404, "OPERATION_NOT_FOUND"),
        ("PUT", "vm", 404, "OPERATION_NOT_FOUND"),
        ("GET", "vm?power_states=SLEEPING", 400, "INVALID_ARGUMENT"),
        ("GET", "host?standalone=perhaps", 400, "INVALID_ARGUMENT"),
        ("GET", "folder?type=ANY", 400, "INVALID_ARGUMENT"),
        ("GET", "vm?colours=red", 400, "UNEXPECTED_INPUT"),
        ("POST", "vm", 400, "UNSUPPORTED"),
        ("POST", "host/{host}?action=disconnect", 400, "UNSUPPORTED"),
        ("DELETE", "vm/{vm}", 400, "UNSUPPORTED"),
    ],
)
def test_errors_have_their_kinds(rest: Rest, verb: str, path: str, status: int, kind: str) -> None:
    target = path.format(host=rest.moid("esx-01.lab", "HostSystem"), vm=rest.moid("ml-07"))
    code, document = rest(verb, f"/api/vcenter/{target}")
    assert (code, document["error_type"], len(document["messages"])) == (status, kind, 1)
    old = target.replace("?", "?filter.") if "?" in target and "action" not in target else target
    code, document = rest(verb, f"/rest/vcenter/{old}")
    assert (code, document["type"]) == (status, f"com.vmware.vapi.std.errors.{kind.lower()}")


@pytest.mark.long
def test_nothing_is_shown_without_a_session(rest: Rest) -> None:
    assert rest("DELETE", "/api/session") == (204, None)
    for service in BY_NAME.values():
        code, document = rest("GET", f"/api/vcenter/{service.path}")
        assert (code, document["error_type"]) == (401, "UNAUTHENTICATED")


@pytest.mark.long
def test_a_template_is_no_vm_here(rest: Rest) -> None:
    assert names(rest("GET", "/api/vcenter/vm?names=golden")) == []
    assert rest("GET", f"/api/vcenter/vm/{rest.moid('golden')}")[0] == 404


@pytest.mark.long
def test_a_user_sees_what_a_role_shows(rest: Rest) -> None:
    world = rest.server.world
    with world.lock:
        world.authority.permit(rest.server.username, NO_ACCESS, rest.moid("ml", "Folder"))
        world.authority.permit(rest.server.username, READ_ONLY)
    assert names(rest("GET", "/api/vcenter/vm?names=ml-07")) == []
    assert names(rest("GET", "/api/vcenter/vm?names=vdi-01")) == ["vdi-01"]
    code, document = rest("GET", f"/api/vcenter/vm/{rest.moid('ml-07')}")
    assert (code, document["error_type"]) == (403, "UNAUTHORIZED")


@pytest.mark.long
def test_more_than_the_limit_are_none(rest: Rest) -> None:
    """1000 networks at most (vSphere Automation API reference, network.list)."""
    world = rest.server.world
    folder = rest.moid("network", "Folder")
    with world.lock:
        for number in range(999):
            world.register(Network(world, f"network-{9000 + number}", f"net-{number:03}", folder))
    assert len(rest("GET", "/api/vcenter/network")[1]) == 1000
    with world.lock:
        world.register(Network(world, "network-8999", "one more", folder))
    code, document = rest("GET", "/api/vcenter/network")
    assert (code, document["error_type"]) == (400, "UNABLE_TO_ALLOCATE_RESOURCE")
    assert document["messages"][0]["id"] == "com.vmware.api.vcenter.network.too_many_matches"
    assert names(rest("GET", "/api/vcenter/network?names=one+more")) == ["one more"]


@pytest.mark.long
def test_every_guest_has_the_name_of_the_api() -> None:
    from com.vmware.vcenter.vm_client import GuestOS

    sdk_names = {name for name in vars(GuestOS) if name.isupper()}
    names_by_guest_id = {guest_id: guest_os(guest_id) for guest_id in vim.vm.GuestOsDescriptor.GuestOsIdentifier.values}
    assert {guest_id for guest_id, name in names_by_guest_id.items() if name not in sdk_names} == {
        "flatcar_64Guest"
    }  # newer than the SDK
    assert len(set(names_by_guest_id.values())) == len(names_by_guest_id)


@pytest.mark.long
def test_sdk_changes_the_power_of_a_vm(lab: Lab, client: Any) -> None:
    from com.vmware.vapi.std.errors_client import AlreadyInDesiredState, NotAllowedInCurrentState, NotFound

    power, vm = client.vcenter.vm.Power, lab.vm("ml-07")._moId
    power_info = power.get(vm)
    assert (power_info.state, power_info.clean_power_off) == ("POWERED_OFF", True)
    for refused in (power.suspend, power.reset):
        with pytest.raises(NotAllowedInCurrentState):
            refused(vm)
    with pytest.raises(AlreadyInDesiredState):
        power.stop(vm)
    power.start(vm)
    assert (power.get(vm).state, power.get(vm).clean_power_off) == ("POWERED_ON", None)
    with pytest.raises(AlreadyInDesiredState):
        power.start(vm)
    power.reset(vm)
    power.suspend(vm)
    assert lab.power("ml-07") == "suspended"
    power.stop(vm)
    assert power.get(vm).state == "POWERED_OFF"
    with pytest.raises(NotFound):
        power.start("vm-none")
    power_changes = [(change.method, change.user) for change in lab.world.ledger if change.name == "ml-07"]
    assert power_changes[0] == ("PowerOnVM_Task", next(iter(lab.world.sessions)).user)


@pytest.mark.long
def test_power_over_rest(rest: Rest) -> None:
    vm, world = rest.moid("ml-07"), rest.server.world
    path = f"vcenter/vm/{vm}/power"
    assert rest("GET", f"/api/{path}") == (200, {"state": "POWERED_OFF", "clean_power_off": True})
    assert rest("POST", f"/api/{path}?action=start") == (204, None)
    assert rest("GET", f"/rest/{path}")[1] == {"value": {"state": "POWERED_ON"}}
    assert rest("POST", f"/rest/{path}/stop")[0] == 200
    code, document = rest("POST", f"/api/{path}?action=stop")
    assert (code, document["error_type"]) == (400, "ALREADY_IN_DESIRED_STATE")
    assert rest("POST", f"/api/{path}?action=fly")[0] == 404
    with world.lock:
        world.authority.permit(rest.server.username, READ_ONLY)
    code, document = rest("POST", f"/api/{path}?action=start")
    assert (code, document["error_type"]) == (403, "UNAUTHORIZED")


@pytest.mark.long
def test_a_vm_without_a_place_for_its_vgpu_is_not_started(rest: Rest) -> None:
    """Both need a whole A40, and there is one on which no desktop runs."""
    assert rest("POST", f"/api/vcenter/vm/{rest.moid('ml-06')}/power?action=start") == (204, None)
    path = f"vcenter/vm/{rest.moid('ml-09')}/power"
    code, document = rest("POST", f"/api/{path}?action=start")
    assert (code, document["error_type"]) == (400, "UNABLE_TO_ALLOCATE_RESOURCE")
    assert "graphics" in document["messages"][0]["default_message"].lower()
    assert rest("GET", f"/api/{path}")[1]["state"] == "POWERED_OFF"
