"""The GPU inventory reads whole: vcsim serves what was edited in, and pyvmomi and govc understand it."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim

from tests.peers.gpu_model import HARDWARE_LABEL, HOSTS, MACHINES, HostModel, Machine
from tests.peers.processes import Endpoint, Govc

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def service(shared_vcsim: Endpoint) -> Iterator[Any]:
    """A pyvmomi session that verifies the certificate."""
    at = urlsplit(shared_vcsim.url)
    context = ssl.create_default_context(cafile=str(shared_vcsim.ca_file))
    instance = SmartConnect(
        host=at.hostname,
        port=at.port,
        user=shared_vcsim.username,
        pwd=shared_vcsim.password,
        sslContext=context,
    )
    yield instance
    Disconnect(instance)


def _by_name(service: Any, kind: type) -> dict[str, Any]:
    view = service.content.viewManager.CreateContainerView(service.content.rootFolder, [kind], True)
    return {found.name: found for found in view.view}


@pytest.fixture(scope="module")
def hosts(service: Any) -> dict[str, Any]:
    return _by_name(service, vim.HostSystem)


@pytest.fixture(scope="module")
def machines(service: Any) -> dict[str, Any]:
    return _by_name(service, vim.VirtualMachine)


def test_pyvmomi_speaks_the_version_of_the_inventory(service: Any) -> None:
    assert service.content.about.apiVersion == "8.0.3.0"
    assert service._stub.version == "vim.version.v8_0_3_0"


@pytest.mark.parametrize("model", HOSTS, ids=lambda model: model.name)
def test_a_host_has_its_cards_on_its_numa_nodes(hosts: dict[str, Any], model: HostModel) -> None:
    hardware = hosts[model.name].hardware
    by_node = {node.typeId: list(node.pciId) for node in hardware.numaInfo.numaNode}
    assert by_node == {n: [s.pci_id for s in model.slots if s.numa_node == n] for n in (0, 1)}
    assert [len(node.cpuID) for node in hardware.numaInfo.numaNode] == [64, 64]
    assert sum(node.memorySize for node in hardware.numaInfo.numaNode) == hardware.memorySize

    nvidia = {d.id: d for d in hardware.pciDevice if d.vendorId & 0xFFFF == 0x10DE}
    assert {i: d.deviceId & 0xFFFF for i, d in nvidia.items()} == {s.pci_id: s.card.device_id for s in model.slots}


@pytest.mark.parametrize("model", HOSTS, ids=lambda model: model.name)
def test_a_host_offers_its_profiles(hosts: dict[str, Any], model: HostModel) -> None:
    config = hosts[model.name].config
    offered = [profile.name for profile in model.profiles]
    assert list(config.sharedPassthruGpuTypes) == offered
    assert [c.vgpu for c in config.sharedGpuCapabilities if c.suspendSupported] == offered
    assert config.graphicsConfig.hostDefaultGraphicsType == "sharedDirect"
    active = [p.id for p in config.pciPassthruInfo if p.passthruActive]
    assert active == [s.pci_id for s in model.slots if s.directpath]
    assert {p.hardwareLabel for p in config.pciPassthruInfo} <= {HARDWARE_LABEL, None}


def test_graphics_info_names_the_running_machines(hosts: dict[str, Any]) -> None:
    info = {g.pciId: g for g in hosts["gpu-esx-03"].config.graphicsInfo}
    names = {pci_id: sorted(vm.name for vm in g.vm) for pci_id, g in info.items()}
    assert names == {"0000:3b:00.0": ["vdi-01", "vdi-03"], "0000:5e:00.0": ["vdi-02", "vdi-04"]}
    assert {g.vgpuMode for g in info.values()} == {"sameSize"}
    mig = hosts["gpu-esx-01"].config.graphicsInfo
    assert {g.vgpuMode for g in mig} == {"multiInstanceGpu"}
    assert {g.memorySizeInKB for g in mig} == {40 * 2**20}


def _backing(machine: Any) -> Any:
    passthrough = vim.vm.device.VirtualPCIPassthrough
    devices = [d for d in machine.config.hardware.device if isinstance(d, passthrough)]
    return devices[0].backing if devices else None


@pytest.mark.parametrize("model", MACHINES, ids=lambda model: model.name)
def test_a_machine_is_as_declared(machines: dict[str, Any], model: Machine) -> None:
    found = machines[model.name]
    assert found.runtime.host.name == model.host
    assert found.summary.runtime.powerState == found.runtime.powerState == model.power
    assert found.config.hardware.memoryMB == model.memory_mib
    assert found.config.memoryAllocation.reservation == (model.memory_mib if model.has_gpu else 0)
    assert found.config.memoryReservationLockedToMax is model.has_gpu
    assert (_backing(found) is not None) == model.has_gpu


def test_each_kind_of_gpu_device_keeps_its_fields(machines: dict[str, Any]) -> None:
    vgpu, fixed, dynamic = (_backing(machines[name]) for name in ("ml-03", "ml-08", "ml-09"))
    assert (vgpu.vgpu, vgpu.migrateSupported) == ("grid_a100-3-20c", True)
    assert (fixed.id, fixed.deviceId, fixed.vendorId) == ("0000:5e:00.0", "26b9", 0x10DE)
    assert [(a.vendorId, a.deviceId) for a in dynamic.allowedDevice] == [(0x10DE, 0x26B9)]
    assert dynamic.customLabel == HARDWARE_LABEL


def test_the_environment_browser_lists_what_machines_may_ask_for(
    hosts: dict[str, Any], machines: dict[str, Any]
) -> None:
    target = machines["ml-07"].environmentBrowser.QueryConfigTarget(host=hosts["gpu-esx-04"])
    assert {(p.pciDevice.id, p.systemId) for p in target.pciPassthrough} == {
        (pci_id, _backing(machines["ml-08"]).systemId) for pci_id in ("0000:5e:00.0", "0000:6f:00.0")
    }
    assert [d.customLabel for d in target.dynamicPassthrough] == [HARDWARE_LABEL]
    by_name = {p.profileName: p for p in target.vgpuProfileInfo}
    assert (by_name["grid_a100-3-20c"].profileSharing, by_name["nvidia_a40-8q"].profileSharing) == (
        "mig",
        "timeSliced",
    )
    assert (by_name["grid_a100-1-5cme"].profileClass, by_name["nvidia_a40-8q"].profileClass) == (
        "compute",
        "quadro",
    )
    assert {d.deviceVendorId for d in target.vgpuDeviceInfo} >= {0x20F110DE}


def test_govc_sees_the_same_gpus(shared_vcsim: Endpoint, govc: Callable[[Endpoint], Govc]) -> None:
    ask = govc(shared_vcsim)
    gpus = ask.json("gpu.host.info", "-host=gpu-esx-04")["devices"]
    assert [gpu["pciId"] for gpu in gpus] == ["0000:3b:00.0", "0000:5e:00.0", "0000:6f:00.0"]
    assert "grid_a100-3-20c" in ask("gpu.host.profile.ls", "-host=gpu-esx-01")
    assert "grid_a100-3-20c" in ask("gpu.vm.info", "-vm=ml-03")
    assert sorted(ask.lines("ls", "vm")) == sorted(f"/DC0/vm/{m.name}" for m in MACHINES)


def test_a_fresh_vcsim_takes_changes(vcsim: Endpoint, govc: Callable[[Endpoint], Govc]) -> None:
    ask = govc(vcsim)
    ask("gpu.vm.add", "-vm=ml-07", "-profile=grid_a100-3-20c")
    ask("vm.power", "-on", "ml-07")
    added = ask.json("device.info", "-vm=ml-07", "pcipassthrough-*")["devices"]
    assert [device["backing"]["vgpu"] for device in added] == ["grid_a100-3-20c"]
    ask("vm.power", "-suspend", "vdi-01")
    power_of = {name: ask.json("vm.info", name)["virtualMachines"][0]["runtime"] for name in ("ml-07", "vdi-01")}
    assert {name: runtime["powerState"] for name, runtime in power_of.items()} == {
        "ml-07": "poweredOn",
        "vdi-01": "suspended",
    }
