"""Random clusters and site files, by seed, and a reader of the simulator's state that shares no code with gpuops."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from random import Random
from typing import Any

import yaml

from gpuops.extras.declare.entries import SiteFile
from gpuops.extras.declare.site_file import parse_site
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.vm_state import VgpuBacking
from gpuops.sim.world import World
from tests.harness import office
from tests.wire.hosts.clusters import ADDRESSES, START

DESKTOP = "nvidia_a40-8q"
MIG_ADDRESS = "0000:d8:00.0"
MARKS: list[dict[str, Any]] = [{"value": "red"}, {"value": "blue"}, {"absent": True}]
WORDS = {"best-effort": "0x00", "equal-share": "0x01"}


def random_world(random: Random) -> World:
    """One to three hosts with one or two A40, some with an A100 or H100 too, and VMs; some have a vGPU, some run."""
    hosts: list[dict[str, Any]] = [
        {
            "name": f"esx-{number:02}",
            "model": "server",
            "driver": "550.90.05",
            "policy": random.choice(["performance", "consolidation"]),
            "gpus": [
                *(_random_gpu(random, at) for at in ADDRESSES[: random.randint(1, 2)]),
                *([_mig_gpu(random)] if random.random() < 0.3 else []),
            ],
        }
        for number in range(1, random.randint(1, 3) + 1)
    ]
    vms = [_random_vm(random, number, random.choice(hosts)) for number in range(1, random.randint(1, 4) + 1)]
    return build_declared(ScenarioFile.of(office.scenario(vms, *hosts, start=START)))


def _random_vm(random: Random, number: int, host: dict[str, Any]) -> dict[str, Any]:
    has_vgpu = random.random() < 0.4
    serves = any(gpu["board"] == "a40" and not gpu["passthrough"] for gpu in host["gpus"])
    return {
        "name": f"vm-{number:02}",
        "on": host["name"],
        "folder": random.choice(["vms", "vms/ml"]),
        "guest": "bare",
        "cpus": 4,
        "memory_gib": 16,
        "disk_gib": 40,
        "devices": [{"vgpu": DESKTOP}] if has_vgpu else [],
        "attributes": {"team": "red"} if random.random() < 0.4 else {},
        "power": "on" if random.random() < 0.2 and (serves or not has_vgpu) else "off",
    }


def _mig_gpu(random: Random) -> dict[str, Any]:
    mode = random.choice(["sameSize", "multiInstanceGpu"])
    return {"board": random.choice(["a100", "h100"]), "at": MIG_ADDRESS, "node": 0, "mode": mode, "passthrough": False}


def _random_gpu(random: Random, at: str) -> dict[str, Any]:
    is_whole = random.random() < 0.25
    return {
        "board": "a40",
        "at": at,
        "node": 0,
        "mode": "sameSize" if is_whole else random.choice(["sameSize", "mixedSize"]),
        "passthrough": is_whole,
        "label": random.choice(["ml", None]) if is_whole else None,
    }


def random_file(random: Random, world: World) -> str:
    """Return a file with general entries and exceptions for this world; it may be infeasible."""
    hosts = sorted(world.by_type("HostSystem"), key=lambda host: str(host.state.name))
    vms = sorted(world.by_type("VirtualMachine"), key=lambda vm: str(vm.state.name))
    host_entries: list[dict[str, Any]] = []
    for host in ["*", *(host.state.name for host in hosts if random.random() < 0.5)]:
        entry: dict[str, Any] = {"host": host}
        if random.random() < 0.4:
            entry["gpu"] = ADDRESSES[0]
        choices: dict[str, list[Any]] = {
            "assignment": ["performance", "consolidation"],
            "default_graphics": ["sharedDirect", "shared"],
            "mig": [True, False],
            "vgpu_mode": ["sameSize", "mixedSize"],
            "scheduler": list(WORDS),
            "passthrough": [True, False],
        }
        keys = [key for key in choices if random.random() < 0.4 and not (key == "mig" and "gpu" in entry)]
        keys = keys or ["assignment"]
        entry |= {key: random.choice(choices[key]) for key in keys}
        if "passthrough" in keys and random.random() < 0.5:
            entry["label"] = random.choice(["ml", "render"])
        host_entries.append(entry)
    vm_entries: list[dict[str, Any]] = []
    for name in ["vm-*", *(vm.state.name for vm in vms if random.random() < 0.5)]:
        entry = {"vm": name}
        if name != "vm-*" and random.random() < 0.6:
            devices: dict[str, Any] = {"absent": True} if random.random() < 0.5 else {"profile": "a40-8q", "count": 1}
            entry["devices"] = devices | ({"power": "off"} if random.random() < 0.5 else {})
        elif name != "vm-*" and random.random() < 0.2:
            entry["folder"] = "vms/ml"
        if random.random() < 0.5:
            entry["drs"] = random.choice(["manual", "fullyAutomated", "off", "cluster"])
        mark: dict[str, Any] = {"attribute": "team"} | random.choice(MARKS)
        if random.random() < 0.5 or not {"devices", "drs"} & set(entry):
            entry["marks"] = [mark]
        vm_entries.append(entry)
    return yaml.safe_dump({"version": 1, "hosts": host_entries, "vms": vm_entries}, sort_keys=False)


def one_subject_each(text: str, world: World) -> Iterator[tuple[str, str]]:
    """Yield for each host and VM of the file its name, and the file with the entries for it alone."""
    content = yaml.safe_load(text)
    for part, key, kind in (("hosts", "host", "HostSystem"), ("vms", "vm", "VirtualMachine")):
        for entity in world.by_type(kind):
            entries = [{**entry, key: entity.name} for entry in content[part] if fnmatchcase(entity.name, entry[key])]
            if part == "hosts":  # a GPU that this host does not have is refused in every file
                entries = [entry for entry in entries if entity.state.gpu(entry.get("gpu", ADDRESSES[0])) is not None]
            else:
                entries = [entry for entry in entries if _is_in_folder(entity, entry, world)]
            if entries:
                yield entity.name, yaml.safe_dump({"version": 1, part: entries}, sort_keys=False)


def _is_in_folder(vm: VirtualMachine, entry: dict[str, Any], world: World) -> bool:
    """Return whether the entry names no folder, or the one folder that files here name."""
    return "folder" not in entry or world.get(vm.state.folder).name == "ml"


def other_values(text: str) -> Iterator[tuple[str, str]]:
    """Yield the file with one key changed, for each key that decides something, and the key's place."""
    other = {
        "shared": "sharedDirect",
        "sharedDirect": "shared",
        "performance": "consolidation",
        "consolidation": "performance",
        "sameSize": "mixedSize",
        "mixedSize": "sameSize",
        "best-effort": "equal-share",
        "equal-share": "best-effort",
        "manual": "off",
        "fullyAutomated": "manual",
        "off": "manual",
        "cluster": "manual",
        True: False,
        False: True,
        "ml": "other",
        "render": "other",
    }
    content = yaml.safe_load(text)
    # general entries are overruled by exceptions: only the last entry of each list decides for certain
    for part, keys in (("hosts", ("assignment", "default_graphics", "passthrough")), ("vms", ("drs",))):
        entry = content[part][-1]
        for key in keys:
            if key in entry:
                before = entry[key]
                entry[key] = other[before]
                yield f"{part}.{key}", yaml.safe_dump(content, sort_keys=False)
                entry[key] = before
    entry = content["vms"][-1]
    if "marks" in entry:
        before = entry["marks"]
        entry["marks"] = [{"attribute": "team", "value": "green"}]
        yield "vms.marks", yaml.safe_dump(content, sort_keys=False)
        entry["marks"] = before


def misfits(text: str, world: World) -> list[str]:
    """Return what of the simulator's state is not as the file says, key by key."""
    content = yaml.safe_load(text)
    wrong: list[str] = []
    for host in world.by_type("HostSystem"):
        state = host.state
        of_host: dict[str, Any] = {}
        of_gpus: dict[str, dict[str, Any]] = {gpu.pci_id: {} for gpu in state.gpus}
        for entry in content["hosts"]:
            if fnmatchcase(state.name, entry["host"]):
                of_host |= {key: entry[key] for key in ("assignment", "default_graphics") if key in entry}
                for address, keys in of_gpus.items():
                    if entry.get("gpu", address) == address:
                        keys |= {key: entry[key] for key in entry if key not in ("host", "gpu", *of_host)}
        present = {"assignment": state.policy, "default_graphics": state.default_graphics_type}
        wrong += [f"{state.name}: {present[key]}" for key, wished in of_host.items() if present[key] != wished]
        for gpu in state.gpus:
            keys = of_gpus[gpu.pci_id]
            if "passthrough" in keys and not gpu.passthrough_active == gpu.passthrough_enabled == keys["passthrough"]:
                wrong.append(f"{state.name} {gpu.pci_id}: passthrough {gpu.passthrough_active}")
            if "label" in keys and (gpu.label or "") != keys["label"]:
                wrong.append(f"{state.name} {gpu.pci_id}: label {gpu.label}")
            if gpu.passthrough_active:
                continue
            if gpu.board.types_in(GpuMode.MULTI_INSTANCE):
                is_divided = gpu.mode is GpuMode.MULTI_INSTANCE
                if keys.get("mig", is_divided) is not is_divided:
                    wrong.append(f"{state.name} {gpu.pci_id}: MIG {is_divided}")
                if is_divided:
                    continue  # in MIG mode it has neither vGPU mode nor scheduler
            if "vgpu_mode" in keys and gpu.mode != keys["vgpu_mode"]:
                wrong.append(f"{state.name} {gpu.pci_id}: mode {gpu.mode}")
            if (
                "scheduler" in keys
                and word_in_force(state.loaded_module_options, gpu.pci_id) != WORDS[keys["scheduler"]]
            ):
                wrong.append(f"{state.name} {gpu.pci_id}: {state.loaded_module_options}")
    for vm in world.by_type("VirtualMachine"):
        wrong += _vm_misfits(vm, content["vms"], world)
    return wrong


def _vm_misfits(vm: VirtualMachine, entries: list[dict[str, Any]], world: World) -> Iterator[str]:
    keys: dict[str, Any] = {}
    for entry in entries:
        if fnmatchcase(vm.state.name, entry["vm"]) and _is_in_folder(vm, entry, world):
            keys |= {key: entry[key] for key in entry if key not in ("vm", "folder")}
    profiles = [device.backing.type_name for device in vm.state.devices if isinstance(device.backing, VgpuBacking)]
    if "devices" in keys and profiles != ([] if keys["devices"].get("absent") else [DESKTOP]):
        yield f"{vm.state.name}: {profiles}"
    numbers = {field.name: key for key, field in world.custom_fields.fields.items()}
    for mark in keys.get("marks", ()):
        value = vm.state.attributes.get(numbers.get(mark["attribute"], -1), "")
        if value != mark.get("value", ""):
            yield f"{vm.state.name}: mark {value!r}"
    if "drs" in keys:
        [cluster] = world.by_type("ClusterComputeResource")
        override = cluster.drs.overrides.get(vm.moid)
        present = "cluster" if override is None else "off" if not override.enabled else str(override.behavior)
        if present != keys["drs"]:
            yield f"{vm.state.name}: drs {present}"


def word_in_force(options: str, pci_id: str) -> str:
    """Return the scheduler's word for this GPU: of its own entry, or of the one for all GPUs."""
    found = "0x00"
    for option in options.split():
        name, _, value = option.partition("=")
        if name == "NVreg_RegistryDwords":
            found = dict(item.split("=") for item in value.split(";"))["RmPVMRL"]
    for option in options.split():
        name, _, value = option.partition("=")
        if name == "NVreg_RegistryDwordsPerDevice":
            at = ""
            for item in value.split(";"):
                key, _, setting = item.partition("=")
                at = setting if key == "pci" else at
                found = setting if key == "RmPVMRL" and at == pci_id else found
    return found


def site_of(text: str) -> SiteFile:
    """Return the file of this text."""
    return parse_site(text, "site.yaml")
