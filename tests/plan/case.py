"""A case: a snapshot, what is changed in it, a request, and what is expected; read from YAML, compared in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

import yaml
from pydantic import TypeAdapter

from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.plan.core.device_signature import signature
from gpuops.plan.core.plan import Plan, Rejection
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.plan.devices.baseline import KEY
from gpuops.plan.placement.project import project
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from tests.plan.snapshots import SNAPSHOTS, catalog, device

CASES: Final = Path(__file__).parent / "cases"
VERBS: Final = {"attach": Attach, "detach": Detach}


@dataclass(frozen=True)
class Case:
    name: str
    request: Mapping[str, Mapping[str, Any]]
    expect: Mapping[str, Any]
    inventory: str = "lab"
    change: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """vms, hosts: name -> fields to replace; a host's `gpus` by address."""
    after: tuple[Mapping[str, Mapping[str, Any]], ...] = ()
    """Requests whose plans are carried out first."""

    def __str__(self) -> str:
        return self.name


def cases(folder: str) -> Iterator[Case]:
    """Every case of the YAML files in a folder."""
    for path in sorted((CASES / folder).glob("*.yaml")):
        for one in yaml.safe_load(path.read_text(encoding="utf-8")):
            yield Case(**{**one, "name": f"{path.stem}: {one['name']}", "after": tuple(one.get("after", ()))})


def snapshot(case: Case) -> Inventory:
    """The case's inventory, changed as it says, with earlier requests carried out."""
    inventory = SNAPSHOTS[case.inventory]()
    for name, changes in case.change.get("vms", {}).items():
        inventory = inventory.with_vm(altered(inventory.find_vm(name), changes))
    for name, changes in case.change.get("hosts", {}).items():
        inventory = inventory.with_hosts([_altered_host(inventory.find_host(name), dict(changes))])
    for asked in case.after:
        plan = planned(asked, inventory)
        assert plan.feasible, f"{asked}: {[str(rejection) for rejection in plan.rejections]}"
        inventory = carried_out(plan, inventory)
    return inventory


def planned(asked: Mapping[str, Mapping[str, Any]], inventory: Inventory) -> Plan:
    [(verb, options)] = asked.items()
    kind = VERBS[verb]
    hints = get_type_hints(kind)
    request = kind(**{name: TypeAdapter(hints[name]).validate_python(value) for name, value in options.items()})
    return request.plan(inventory, catalog(), inventory.taken_at)


def carried_out(plan: Plan, inventory: Inventory) -> Inventory:
    for step in plan.steps:
        inventory = project(step, inventory, catalog())
    return inventory


def altered(value: Any, changes: Mapping[str, Any]) -> Any:
    """The dataclass with these fields, written as YAML writes them."""
    hints = get_type_hints(type(value))
    assert set(changes) <= {each.name for each in fields(value)}, changes
    parsed = {
        name: tuple(device(one, 13000 + number) for number, one in enumerate(text))
        if name == "devices" and text is not None
        else TypeAdapter(hints[name]).validate_python(text)
        for name, text in changes.items()
    }
    return replace(value, **parsed)


def _altered_host(host: Host, changes: dict[str, Any]) -> Host:
    by_address = {PciAddress.parse(address): each for address, each in changes.pop("gpus", {}).items()}
    gpus = tuple(altered(gpu, by_address.get(gpu.address, {})) for gpu in host.gpus)
    return altered(replace(host, gpus=gpus), changes)


def said(rejection: Rejection, expected: Any) -> Any:
    """The rejection as the case tells it: with its hint where one is expected."""
    return {str(rejection): rejection.hint} if isinstance(expected, dict) else str(rejection)


def told(step: Step, inventory: Inventory, expected: Any) -> Any:
    """The step as the case tells it: in full where a mapping is expected, else in a line."""
    name = inventory.vms[step.vm].name
    match step:
        case ReconfigureVm(change=change):
            return _change(name, change, inventory) if isinstance(expected, dict) else f"reconfigure {name}"
        case RelocateVm(host=host):
            return f"move {name} to {inventory.hosts[host].name}"
        case PowerOnVm(host=host):
            return f"power on {name}" + (f" on {inventory.hosts[host].name}" if host else "")
        case ResumeVm():
            return f"resume {name}"
        case SuspendVm():
            return f"suspend {name}"
        case PowerOffVm():
            return f"power off {name}"
        case ShutDownGuest():
            return f"shut down {name}"
        case RunInGuest(program=program):
            return f"run {program} in {name}"
        case SetAttribute():
            return f"set attribute of {name}"


def _change(name: str, change: VmChange, inventory: Inventory) -> dict[str, Any]:
    devices = {
        each.key: signature(each) for vm in inventory.vms.values() if vm.name == name for each in vm.devices or ()
    }
    extra = dict(change.extra_config)
    baseline = extra.pop(KEY, None)
    told: dict[str, Any] = {
        "reconfigure": name,
        "add": [signature(each) for each in change.add],
        "remove": [devices[key] for key in change.remove],
        "edit": [f"{devices[key]} -> {profile}" for key, profile in change.replace_profile],
        "group": change.device_group,
        "extra_config": extra,
        "memory_locked": change.memory_locked,
        "memory_reservation_mib": change.memory_reservation_mib,
        "cpu_hot_add": change.cpu_hot_add,
        "cores_per_numa_node": change.cores_per_numa_node,
        "baseline": json.loads(baseline) if baseline else baseline,
        "guest_node": [node for each in change.add if (node := getattr(each, "numa_node", None)) is not None],
    }
    return {key: value for key, value in told.items() if value not in (None, [], {})}
