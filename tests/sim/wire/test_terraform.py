"""A Terraform configuration with GPUs is applied, planned again without differences, and destroyed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.sim.lab import category_spec
from tests.sim.wire.terraform import TAGGING, Provider, Reference, Refused, reference

SHARES = "<shares><shares>0</shares><level>normal</level></shares>"
SETTINGS = {
    "cpuHotAddEnabled": "false",
    "cpuHotRemoveEnabled": "false",
    "firmware": "efi",
    "memoryHotAddEnabled": "false",
    "memoryReservationLockedToMax": "true",
    "nestedHVEnabled": "false",
    "swapPlacement": "inherit",
    "vPMCEnabled": "false",
}
FLAGS = dict.fromkeys(("diskUuidEnabled", "enableLogging", "vbsEnabled", "vvtdEnabled"), "false")
TOOLS = {
    "afterPowerOn": "true",
    "afterResume": "true",
    "beforeGuestReboot": "false",
    "beforeGuestShutdown": "true",
    "beforeGuestStandby": "true",
    "syncTimeWithHost": "false",
    "syncTimeWithHostAllowed": "true",
    "toolsUpgradePolicy": "manual",
}
"""What the provider sends for every VM, and plans a change for where it reads back otherwise."""
GUEST, MEMORY_MIB = "ubuntu64Guest", 8192
FILES = "<files><vmPathName>[lab-ds-1]</vmPathName></files>"
PCI = "VirtualPCIPassthrough"


@pytest.fixture
def server() -> Iterator[SimServer]:
    with SimServer(build("lab"), tls=False) as running:
        yield running
    assert running.world.bugs == []


@contextmanager
def configure_provider(server: SimServer) -> Iterator[Provider]:
    provider = Provider(server)
    provider.configure()
    yield provider
    provider.close()


@pytest.fixture
def provider(server: SimServer) -> Iterator[Provider]:
    with configure_provider(server) as client:
        yield client


def fields(values: dict[str, str]) -> str:
    return "".join(f"<{name}>{text}</{name}>" for name, text in values.items())


def config_spec(name: str, changes: str = "", options: dict[str, str] | None = None, files: str = "") -> str:
    """The VirtualMachineConfigSpec of a VM that reserves its memory."""
    extra = "".join(
        f'<extraConfig><key>{key}</key><value xsi:type="xsd:string">{text}</value></extraConfig>'
        for key, text in (options or {}).items()
    )
    return (
        f"<name>{name}</name><guestId>{GUEST}</guestId>{files}<tools>{fields(TOOLS)}</tools>"
        f"<flags>{fields(FLAGS)}</flags><numCPUs>4</numCPUs><numCoresPerSocket>1</numCoresPerSocket>"
        f"<memoryMB>{MEMORY_MIB}</memoryMB>{fields(SETTINGS)}{changes}"
        f"<cpuAllocation><reservation>0</reservation><limit>-1</limit>{SHARES}</cpuAllocation>"
        f"<memoryAllocation><reservation>{MEMORY_MIB}</reservation><limit>-1</limit>{SHARES}</memoryAllocation>"
        f"<latencySensitivity><level>normal</level></latencySensitivity>{extra}"
        "<bootOptions><efiSecureBootEnabled>false</efiSecureBootEnabled><bootRetryEnabled>false</bootRetryEnabled>"
        "<bootRetryDelay>10000</bootRetryDelay></bootOptions>"
    )


def add_device(kind: str, key: int, content: str, create: bool = False) -> str:
    operation = "<operation>add</operation>" + ("<fileOperation>create</fileOperation>" if create else "")
    return f'<deviceChange>{operation}<device xsi:type="{kind}"><key>{key}</key>{content}</device></deviceChange>'


def card(network: Reference, name: str) -> str:
    backing = f"<deviceName>{name}</deviceName>{reference('network', network)}"
    return add_device(
        "VirtualVmxnet3",
        -203,
        f'<backing xsi:type="VirtualEthernetCardNetworkBackingInfo">{backing}</backing>'
        "<connectable><startConnected>true</startConnected><allowGuestControl>true</allowGuestControl>"
        "<connected>true</connected></connectable><controllerKey>100</controllerKey>"
        "<addressType>generated</addressType><resourceAllocation><reservation>0</reservation><share>"
        "<shares>0</shares><level>normal</level></share><limit>-1</limit></resourceAllocation>",
    )


def devices(provider: Provider, vm: Reference, kind: str) -> list[dict[str, Any]]:
    hardware = provider.properties(vm, "config.hardware.device")["config.hardware.device"]["VirtualDevice"]
    return [device for device in hardware if device[""] == kind]


def differences(provider: Provider, name: str, uuid: str, network: Reference, tag: str) -> dict[str, Any]:
    """What the provider reads of a VM that it knows, where it differs from what it sent."""
    vm = provider.by_uuid(uuid)
    assert vm is not None
    properties = provider.properties(vm)
    config = properties["config"]
    planned_values: dict[str, Any] = {
        "name": name,
        "guestId": GUEST,
        "alternateGuestName": "",
        "annotation": "",
        **SETTINGS,
    }
    read_values: dict[str, Any] = {key: config[key][0] for key in planned_values}
    for group, values in (("flags", FLAGS), ("tools", TOOLS)):
        planned_values |= {f"{group}.{key}": setting for key, setting in values.items()}
        read_values |= {f"{group}.{key}": config[group][0][key][0] for key in values}
    planned_values |= {"numCPU": "4", "memoryMB": str(MEMORY_MIB), "memory": str(MEMORY_MIB), "cpu": "0"}
    read_values |= {key: config["hardware"][0][key][0] for key in ("numCPU", "memoryMB")}
    read_values |= {key: config[f"{key}Allocation"][0]["reservation"][0] for key in ("memory", "cpu")}
    (nic,) = devices(provider, vm, "VirtualVmxnet3")
    (allocation,) = nic["resourceAllocation"]
    planned_values |= {
        "network": network,
        "limit": "-1",
        "share": "normal",
        "policies": [],
        "tags": [tag],
        "power": "poweredOn",
    }
    read_values |= {"network": nic["backing"][0]["network"][0], "limit": allocation["limit"][0]}
    read_values |= {"share": allocation["share"][0]["level"][0], "power": properties["runtime"]["powerState"][0]}
    disks = [f"{vm[1]}:{disk['key'][0]}" for disk in devices(provider, vm, "VirtualDisk")]
    keys = [("virtualMachine", vm[1]), *(("virtualDiskId", disk) for disk in disks)]
    read_values["policies"] = [
        policy
        for kind, key in keys
        for policy in provider.policies(
            "PbmQueryAssociatedProfile", body=f"<entity><objectType>{kind}</objectType><key>{key}</key></entity>"
        )
    ]
    target = {"object_id": {"type": "VirtualMachine", "id": vm[1]}}
    read_values["tags"] = provider.rest("POST", f"{TAGGING}/tag-association?~action=list-attached-tags", target)
    assert not provider.is_vapp(properties["resourcePool"])
    return {
        key: (planned_values[key], read_values[key])
        for key in planned_values
        if planned_values[key] != read_values[key]
    }


@dataclass(frozen=True)
class Site:
    """What the data sources of the configuration find."""

    datacenter: Reference
    cluster: Reference
    pool: Reference
    store: Reference
    network: Reference
    host: Reference
    vgpu_vm: Reference
    template: Reference


def data_sources(provider: Provider) -> Site:
    home = "lab-dc/host/lab-cluster"
    site = Site(
        datacenter=provider.at("lab-dc"),
        cluster=provider.at(home),
        pool=provider.at(f"{home}/Resources"),
        store=provider.at("lab-dc/datastore/lab-ds-1"),
        network=provider.at("lab-dc/network/VM Network"),
        host=provider.at(f"{home}/esx-02.lab"),
        vgpu_vm=provider.at("lab-dc/vm/ml/ml-01"),
        template=provider.at("lab-dc/vm/misc/golden"),
    )
    assert provider.path_of(("ComputeResource", site.cluster[1]))[0] == "lab-cluster"
    assert not provider.is_vapp(site.pool)
    profiles = provider.properties(site.host, "config.sharedGpuCapabilities")["config.sharedGpuCapabilities"]
    assert "nvidia_a40-8q" in {capability["vgpu"][0] for capability in profiles["HostSharedGpuCapabilities"]}
    return site


def passthrough(provider: Provider, site: Site, pci_id: str) -> str:
    """The device that Terraform adds for an entry of `pci_device_id`: it names no device id."""
    browser = provider.properties(site.cluster, "environmentBrowser")["environmentBrowser"]
    (target,) = provider.call("QueryConfigTarget", browser, reference("host", site.host))
    pci_devices = provider.properties(site.host, "hardware.pciDevice")["hardware.pciDevice"]["HostPciDevice"]
    (vendor,) = [device["vendorId"][0] for device in pci_devices if device["id"] == [pci_id]]
    backing = (
        f"<deviceName></deviceName><id>{pci_id}</id><deviceId></deviceId>"
        f"<systemId>{target['pciPassthrough'][0]['systemId'][0]}</systemId><vendorId>{vendor}</vendorId>"
    )
    backing = f'<backing xsi:type="VirtualPCIPassthroughDeviceBackingInfo">{backing}</backing>'
    return add_device("VirtualPCIPassthrough", -204, backing)


def bare(provider: Provider, site: Site) -> str:
    """Controller, disk and network card of a VM without a template, added to the devices that every VM has."""
    browser = provider.properties(site.cluster, "environmentBrowser")["environmentBrowser"]
    (option,) = provider.call("QueryConfigOption", browser)
    controllers = [(device[""], device["key"][0]) for device in option["defaultDevice"] if "busNumber" in device]
    assert ("VirtualPCIController", "100") in controllers
    scsi = "<busNumber>0</busNumber><hotAddRemove>true</hotAddRemove><sharedBus>noSharing</sharedBus>"
    disk = (
        '<backing xsi:type="VirtualDiskFlatVer2BackingInfo"><fileName></fileName><diskMode>persistent</diskMode>'
        "<writeThrough>false</writeThrough><thinProvisioned>true</thinProvisioned><eagerlyScrub>false</eagerlyScrub>"
        "</backing><controllerKey>-201</controllerKey><unitNumber>0</unitNumber>"
        "<capacityInKB>0</capacityInKB><capacityInBytes>10737418240</capacityInBytes>"
    )
    return (
        add_device("ParaVirtualSCSIController", -201, f"{scsi}<scsiCtlrUnitNumber>7</scsiCtlrUnitNumber>")
        + add_device("VirtualDisk", -202, disk, create=True)
        + card(site.network, "VM Network")
    )


def is_reachable(provider: Provider, vm: Reference) -> bool:
    """Whether the guest has an address in the network of its gateway, which the provider waits for."""
    guest = provider.properties(vm, "guest")["guest"]
    (address,) = guest["net"][0]["ipConfig"][0]["ipAddress"]
    (route,) = guest["ipStack"][0]["ipRouteConfig"][0]["ipRoute"]
    network = ip_interface(f"{address['ipAddress'][0]}/{address['prefixLength'][0]}").network
    return route["network"] == ["0.0.0.0"] and ip_address(route["gateway"][0]["ipAddress"][0]) in network


def clone(provider: Provider, site: Site, source: Reference, folder: Reference, name: str, spec: str) -> Reference:
    """A copy of a VM or template with all its disks, set up as the configuration says."""
    relocated = "".join(
        f"<disk><diskId>{disk['key'][0]}</diskId>{reference('datastore', site.store)}</disk>"
        for disk in devices(provider, source, "VirtualDisk")
    )
    places = (("datastore", site.store), ("pool", site.pool), ("host", site.host))
    location = "".join(reference(tag, place) for tag, place in places) + relocated
    spec_of_clone = f"<spec><location>{location}</location><template>false</template><powerOn>false</powerOn></spec>"
    vm: Reference = provider.run(
        "CloneVM_Task", source, f"{reference('folder', folder)}<name>{name}</name>{spec_of_clone}"
    )
    provider.run("ReconfigVM_Task", vm, f"<spec>{spec}</spec>")
    return vm


@pytest.mark.long
def test_vms_with_gpus_are_applied_planned_and_destroyed(provider: Provider, server: SimServer) -> None:
    before = {obj.moid for obj in server.world.by_type("ManagedEntity")}
    site = data_sources(provider)

    parent = provider.properties(site.datacenter, "vmFolder")["vmFolder"]
    (folder,) = provider.call("CreateFolder", parent, "<name>terraform</name>")
    share = f"<reservation>0</reservation><expandableReservation>true</expandableReservation><limit>-1</limit>{SHARES}"
    allocations = f"<cpuAllocation>{share}</cpuAllocation><memoryAllocation>{share}</memoryAllocation>"
    (pool,) = provider.call("CreateResourcePool", site.pool, f"<name>night</name><spec>{allocations}</spec>")
    site = replace(site, pool=pool)
    create_category = {"create_spec": category_spec("rotation", "VirtualMachine", cardinality="SINGLE")}
    category = provider.rest("POST", f"{TAGGING}/category", create_category)
    create_tag = {"create_spec": {"name": "night", "description": "", "category_id": category}}
    tag = provider.rest("POST", f"{TAGGING}/tag", create_tag)
    vgpu = "grid_a100-3-20c"
    machines = {
        "tf-vgpu": clone(
            provider, replace(site, host=provider.at("lab-dc/host/lab-cluster/esx-01.lab")), site.vgpu_vm, folder,
            "tf-vgpu", config_spec("tf-vgpu"),
        ),
        "tf-direct": clone(
            provider, site, site.template, folder, "tf-direct",
            config_spec(
                "tf-direct",
                passthrough(provider, site, "0000:d8:00.0"),
                {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"},
            ),
        ),
        "tf-bare": provider.run(
            "CreateVM_Task",
            folder,
            f"<config>{config_spec('tf-bare', bare(provider, site), files=FILES)}</config>{reference('pool', pool)}",
        ),
    }  # fmt: skip
    for vm in machines.values():
        assert provider.properties(vm, "disabledMethod") == {"disabledMethod": ""}
        provider.run("PowerOnVM_Task", vm)
        target = {"object_id": {"type": "VirtualMachine", "id": vm[1]}}
        provider.rest("POST", f"{TAGGING}/tag-association/id:{tag}?~action=attach", target)
    assert is_reachable(provider, machines["tf-vgpu"])
    assert [device["backing"][0]["vgpu"] for device in devices(provider, machines["tf-vgpu"], PCI)] == [[vgpu]]
    assert [device["backing"][0]["id"] for device in devices(provider, machines["tf-direct"], PCI)] == [
        ["0000:d8:00.0"]
    ]

    with configure_provider(server) as second_provider:
        assert data_sources(second_provider).store == site.store
        assert second_provider.rest("GET", f"{TAGGING}/category/id:{category}")["associable_types"] == [
            "VirtualMachine"
        ]
        uuids = {name: second_provider.properties(vm, "config.uuid")["config.uuid"] for name, vm in machines.items()}
        for name, uuid in uuids.items():
            assert differences(second_provider, name, uuid, site.network, tag) == {}

    with configure_provider(server) as last:
        for uuid, vm in zip(uuids.values(), machines.values(), strict=True):
            assert last.by_uuid(uuid) == vm
            last.run("PowerOffVM_Task", vm)
            last.run("Destroy_Task", vm)
            assert last.by_uuid(uuid) is None
        last.rest("DELETE", f"{TAGGING}/tag/id:{tag}")
        last.rest("DELETE", f"{TAGGING}/category/id:{category}")
        last.run("Destroy_Task", pool)
        last.run("Destroy_Task", folder)
        assert last.rest("GET", f"{TAGGING}/category") == []
    assert {obj.moid for obj in server.world.by_type("ManagedEntity")} == before


def test_data_sources_find_what_they_name(provider: Provider) -> None:
    assert data_sources(provider).pool[0] == "ResourcePool"


def test_a_data_source_of_a_policy_is_read(provider: Provider) -> None:
    arguments = "<resourceType><resourceType>STORAGE</resourceType></resourceType>"
    arguments += "<profileCategory>REQUIREMENT</profileCategory>"
    profile_ids = provider.policies("PbmQueryProfile", body=arguments)
    ids = "".join(
        f"<profileIds><uniqueId>{profile_id['uniqueId'][0]}</uniqueId></profileIds>" for profile_id in profile_ids
    )
    assert len(provider.policies("PbmRetrieveContent", body=ids)) == len(profile_ids) > 0
    with pytest.raises(Refused, match="InvalidArgument"):
        provider.policies("PbmRetrieveContent")
