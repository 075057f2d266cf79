"""govc reads our simulated vCenter: what an administrator would type, over verified TLS, and what must come out.

govc is third-party; what it prints shows how a client reads our wire. The scenario is `lab`. The rows of
`govc_calls.tsv` have what a verb prints; here are answers of several fields, and what is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.sim.server import SimServer
from gpuops.sim.wire.certificates import create
from tests.peers.processes import Govc, Refusal

pytestmark = pytest.mark.peer

A100_MIG = [f"grid_a100-{slices}" for slices in ("1-10c", "1-5c", "1-5cme", "2-10c", "3-20c", "4-20c", "7-40c")]


def fields(text: str) -> dict[str, str]:
    """`Name:  value` lines as a mapping; the first one of a name counts."""
    values_by_name: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition(":")
        if separator:
            values_by_name.setdefault(name, value.strip())
    return values_by_name


def one_object(read: Govc, path: str, *properties: str) -> dict[str, Any]:
    """The properties of one object, as `object.collect -json` prints them."""
    changes = [
        change for document in read.documents("object.collect", path, *properties) for change in _changes(document)
    ]
    return {change["name"]: change["val"] for change in changes}


def _changes(document: Any) -> list[Any]:
    return document if isinstance(document, list) else document["changeSet"]


def test_an_untrusted_certificate_is_refused(read: Govc, tmp_path: Path) -> None:
    other_authority = create(tmp_path)
    with pytest.raises(Refusal, match="certificate signed by unknown authority"):
        replace(read, endpoint=replace(read.endpoint, ca_file=other_authority.ca_file))("about")


def test_a_wrong_password_is_refused(read: Govc) -> None:
    with pytest.raises(Refusal, match="incorrect user name or password"):
        replace(read, endpoint=replace(read.endpoint, password="wrong"))("about")


def test_find_lists_every_kind(read: Govc, shared_lab: SimServer) -> None:
    machines = read.lines("find", "/", "-type", "m")
    assert "/lab-dc/vm/ml/ml-07" in machines
    names = sorted(vm.name for vm in shared_lab.world.by_type("VirtualMachine"))
    assert sorted(path.rpartition("/")[2] for path in machines) == names
    assert read.lines("find", "/", "-type", "h") == [
        "/lab-dc/host/lab-cluster/esx-01.lab",
        "/lab-dc/host/lab-cluster/esx-02.lab",
    ]
    assert read.lines("find", "/", "-type", "c") == ["/lab-dc/host/lab-cluster"]
    assert read.lines("find", "/", "-type", "s") == ["/lab-dc/datastore/lab-ds-1"]
    assert read.lines("find", "/", "-type", "n") == ["/lab-dc/network/VM Network"]


def test_find_filters_by_name_and_property(read: Govc) -> None:
    assert read.lines("find", ".", "-type", "m", "-name", "ml-*", "-runtime.powerState", "poweredOn") == []
    assert read.lines("find", ".", "-type", "m", "-name", "vdi-*", "-runtime.powerState", "suspended") == [
        "/lab-dc/vm/vdi/vdi-11"
    ]


def test_vm_info_in_json_holds_what_plans_need(read: Govc) -> None:
    (machine,) = read.json("vm.info", "ml-07")["virtualMachines"]
    assert machine["name"] == "ml-07"
    assert machine["runtime"]["powerState"] == "poweredOff"
    assert machine["config"]["hardware"]["numCPU"] == 8
    assert machine["config"]["hardware"]["memoryMB"] == 64 * 1024
    assert machine["config"]["firmware"] == "efi"
    assert machine["summary"]["config"]["name"] == "ml-07"


def test_vm_info_for_people(read: Govc) -> None:
    text = fields(read("vm.info", "vdi-01"))
    assert (text["Path"], text["Host"], text["Power state"]) == ("/lab-dc/vm/vdi/vdi-01", "esx-01.lab", "poweredOn")
    assert [line.split()[1:] for line in read.lines("fields.info", "vm/vdi/vdi-01")] == [
        ["gpuops.role", "desktop"],
        ["gpuops.owner", "office"],
    ]


def test_an_ambiguous_name_is_refused(read: Govc) -> None:
    with pytest.raises(Refusal, match="resolves to multiple vms"):
        read("device.ls", "-vm=twin")


def test_object_collect_reads_host_gpu_properties(read: Govc) -> None:
    host = one_object(
        read,
        "/lab-dc/host/lab-cluster/esx-01.lab",
        "config.sharedPassthruGpuTypes",
        "config.graphicsInfo",
        "hardware.numaInfo",
    )
    offered = _array(host["config.sharedPassthruGpuTypes"])
    assert set(A100_MIG) <= set(offered)
    modes = {g["pciId"]: g["vgpuMode"] for g in _array(host["config.graphicsInfo"])}
    assert modes["0000:3b:00.0"] == "multiInstanceGpu"
    near = {n["typeId"]: n["pciId"] for n in host["hardware.numaInfo"]["numaNode"]}
    assert "0000:3b:00.0" in near[0]
    assert {"0000:af:00.0", "0000:d8:00.0"} <= set(near[1])


def _array(value: Any) -> list[Any]:
    """An array property: govc wraps it in its type (`{"_typeName": "ArrayOfString", "_value": [...]}`)."""
    return list(value["_value"]) if isinstance(value, dict) else list(value)


def test_object_collect_reads_a_nested_leaf_of_every_machine(read: Govc) -> None:
    documents = read.documents("object.collect", "-type=m", "/", "name", "config.hardware.memoryMB")
    changes = [{change["name"]: change["val"] for change in document["changeSet"]} for document in documents]
    memory = {change["name"]: change["config.hardware.memoryMB"] for change in changes}
    assert (memory["ml-07"], memory["vdi-01"]) == (65536, 8192)
    assert len(documents) == len(read.lines("find", "/", "-type", "m"))


def test_object_collect_refuses_a_property_that_does_not_exist(read: Govc) -> None:
    with pytest.raises(Refusal, match=r"config\.hardware\.gpus"):
        read("object.collect", "-s", "vm/ml/ml-07", "config.hardware.gpus")


def test_device_ls_shows_the_vgpu(read: Govc) -> None:
    (vgpu,) = [line for line in read.lines("device.ls", "-vm=ml-01") if "VirtualPCIPassthrough" in line]
    assert vgpu.split() == [
        "pcipassthrough-13000",
        "VirtualPCIPassthrough",
        "NVIDIA",
        "GRID",
        "vGPU",
        "grid_a100-3-20c",
    ]


def test_device_info_shows_the_backings(read: Govc) -> None:
    def backing(machine: str) -> Any:
        return read.json("device.info", f"-vm={machine}", "pcipassthrough-*")["devices"][0]["backing"]

    assert backing("vdi-01")["vgpu"] == "nvidia_a40-8q"
    fixed = backing("ml-03")
    assert (fixed["id"], fixed["deviceId"], fixed["vendorId"]) == ("0000:5e:00.0", "26b9", 0x10DE)
    dynamic = backing("ml-04")
    assert dynamic["customLabel"] == "l40s-ml"
    assert [(a["vendorId"], a["deviceId"]) for a in dynamic["allowedDevice"]] == [(0x10DE, 0x26B9)]


def test_device_pci_ls_offers_the_directpath_devices_of_the_cluster(read: Govc) -> None:
    heading, *rows = read.lines("device.pci.ls", "-vm=ml-08")
    assert heading.split()[:2] == ["System", "ID"]
    assert [row.split()[1] for row in rows] == ["0000:5e:00.0", "0000:d8:00.0"]
    assert len({row.split()[0] for row in rows}) == 1
    # a VM asks its cluster's browser, without naming a host: the same devices wherever it is registered
    assert read.lines("device.pci.ls", "-vm=ml-07") == [heading, *rows]


def test_gpu_host_info_lists_physical_gpus_only(read: Govc) -> None:
    gpus = read.json("gpu.host.info", "-host=esx-02.lab")["devices"]
    assert {gpu["pciId"] for gpu in gpus} == {
        "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:8a:00.0", "0000:af:00.0", "0000:d8:00.0",
    }  # fmt: skip
    assert {gpu["vendorName"] for gpu in gpus} == {"NVIDIA Corporation"}
    assert "NVIDIA A100 PCIe 80GB" in read("gpu.host.info", "-host=esx-02.lab")


def test_host_info_counts_processors_and_memory(read: Govc) -> None:
    text = fields(read("host.info", "esx-01.lab"))
    assert text["Logical CPUs"] == "64 CPUs @ 2000MHz"
    assert text["Memory"] == "1048576MB"
    assert text["State"] == "connected"
    (host,) = read.json("host.info", "esx-02.lab")["hostSystems"]
    assert host["runtime"]["inMaintenanceMode"] is False
    assert host["summary"]["config"]["product"]["apiVersion"].startswith("8.0.3")


def test_esxcli_shows_what_an_administrator_of_gpus_asks_for(read: Govc) -> None:
    esxcli = ("host.esxcli", "-host=esx-01.lab")
    devices = read.lines(*esxcli, "graphics", "device", "list")
    assert next(line.split()[1] for line in devices if line.startswith("GraphicsType:")) == "SharedPassthru"
    assert any(line.startswith("DriverVersion:") for line in read.lines(*esxcli, "graphics", "device", "stats", "list"))
    assert "Performance" in read(*esxcli, "graphics", "host", "get")
    assert any(line.split() == ["VendorID:", "0x10de"] for line in read.lines(*esxcli, "hardware", "pci", "list"))
    head, _, *vibs = read.lines(*esxcli, "software", "vib", "list")
    assert head.split() == ["Name", "Version", "Vendor", "Acceptance", "Level", "Install", "Date", "Platforms"]
    assert {line.split()[2] for line in vibs} == {"VMware", "NVIDIA"}
    assert read.lines(*esxcli, "system", "module", "list")[2].split() == ["nvidia", "true", "true"]


def test_metric_ls_names_gpu_counters_of_a_host_and_none_of_a_stopped_machine(read: Govc) -> None:
    host = read.lines("metric.ls", "host/lab-cluster/esx-01.lab")
    assert {"gpu.utilization.average", "gpu.mem.used.average", "gpu.temperature.average"} <= set(host)
    assert "cpu.usagemhz.average" in read.lines("metric.ls", "vm/vdi/vdi-01")
    assert read.lines("metric.ls", "vm/ml/ml-07") == []


def test_metric_sample_gives_a_value_per_gpu(read: Govc) -> None:
    sampled = read.json(
        "metric.sample", "-n=3", "-instance=*", "host/lab-cluster/esx-01.lab", "gpu.utilization.average"
    )
    series = {s["instance"]: s["value"] for s in sampled["sample"][0]["value"]}
    assert len(series) == 3
    assert all(len(values) == 3 and all(0 <= value <= 10_000 for value in values) for values in series.values())


def test_metric_sample_of_a_desktop_is_what_the_scenario_says(read: Govc) -> None:
    """Of five samples in a row one is what its state says, and none is more than 15 % below."""
    sampled = read.json("metric.sample", "-n=5", "vm/vdi/vdi-01", "cpu.usagemhz.average")
    values = sampled["sample"][0]["value"][0]["value"]
    assert (len(values), max(values)) == (5, 60)
    assert min(values) >= 51
