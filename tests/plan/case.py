"""A case: a snapshot, what is changed in it, a request, and what is expected; read from YAML, compared in words.

Each kind of case is a dataclass whose fields are the keys that its YAML may have; an unknown key is refused everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, get_type_hints

import yaml

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.stored import to_stored
from gpuops.model.stored_json import decode_stored
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.passthru_devices import signature
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
from gpuops.plan.devices.settings import KEY
from gpuops.plan.placement.project import project
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from tests.plan.snapshots import SNAPSHOTS, catalog, device

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

CASES: Final = Path(__file__).parent / "cases"
VERBS: Final = {"attach": Attach, "detach": Detach}


Words = Mapping[str, Any]


class Named(Protocol):
    """Every kind of case has a name."""

    @property
    def name(self) -> str: ...


CaseKind = TypeVar("CaseKind", bound=Named)


@dataclass(frozen=True)
class Case:
    name: str
    request: Mapping[str, Words]
    expect: Words
    inventory: str = "lab"
    change: Mapping[str, Words] = field(default_factory=dict)
    """vms, hosts, clusters: name -> fields to replace, a host's `gpus` by address; vcenter: fields to replace."""
    after: tuple[Mapping[str, Words], ...] = ()
    """Requests whose plans are carried out first."""

    def __str__(self) -> str:
        return self.name


def cases(folder: str) -> Iterator[Case]:
    """Every case of the YAML files in a folder."""
    for case in read_cases(folder, Case):
        yield replace(case, after=tuple(case.after))


def read_cases(folder: str, kind: type[CaseKind]) -> list[CaseKind]:
    """Every case of the YAML files in a folder, of this kind."""
    found = [
        case_of(kind, {**one, "name": f"{path.stem}: {one['name']}"})
        for path in sorted((CASES / folder).glob("*.yaml"))
        for one in yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    ]
    names = [case.name for case in found]
    assert len(set(names)) == len(names), "each case has a name of its own"
    return found


def case_of(kind: type[CaseKind], keys: Words) -> CaseKind:
    """The case with these keys. Raises TypeError for one that is no field of it."""
    return kind(**keys)


def compare(told: Words, expect: Words, unless_named: Collection[str]) -> None:
    """What came out is what the case expects; of `unless_named` it is nothing where the case does not name it."""
    assert set(expect) <= set(told), f"unknown expectations: {sorted(set(expect) - set(told))}"
    seen = {key: value for key, value in told.items() if key in expect or (key in unless_named and value)}
    assert seen == dict(expect), came_out(seen)


def came_out(told: Any) -> str:
    """What came out, as the case would write it."""
    return "came out:\n" + yaml.safe_dump(told, sort_keys=False, width=1000)


def snapshot(case: Case) -> Inventory:
    """The case's inventory, changed as it says, with earlier requests carried out."""
    inventory = changed(SNAPSHOTS[case.inventory](), case.change)
    for asked in case.after:
        plan = planned(asked, inventory)
        assert plan.feasible, f"{asked}: {[str(rejection) for rejection in plan.rejections]}"
        inventory = carried_out(plan, inventory)
    return inventory


def changed(inventory: Inventory, change: Mapping[str, Words]) -> Inventory:
    """The inventory with what a case changes in it."""
    assert set(change) <= {"vms", "hosts", "clusters", "vcenter"}, f"unknown changes: {sorted(change)}"
    for name, changes in change.get("vms", {}).items():
        inventory = inventory.with_vm(altered(inventory.find_vm(name), changes))
    for name, changes in change.get("hosts", {}).items():
        inventory = inventory.with_hosts([_altered_host(inventory.find_host(name), dict(changes))])
    for name, changes in change.get("clusters", {}).items():
        [cluster] = [each for each in inventory.clusters.values() if each.name == name]
        inventory = replace(inventory, clusters={**inventory.clusters, cluster.ref: altered(cluster, changes)})
    return altered(inventory, change.get("vcenter", {}))


def planned(asked: Mapping[str, Words], inventory: Inventory) -> Plan:
    [(verb, options)] = asked.items()
    kind = VERBS[verb]
    hints = get_type_hints(kind)
    request = kind(**{name: decode_stored(hints[name], value) for name, value in options.items()})
    return request.plan(inventory, catalog(), inventory.taken_at)


def carried_out(plan: Plan, inventory: Inventory) -> Inventory:
    for step in plan.steps:
        inventory = project(step, inventory, catalog())
    return inventory


def altered(value: Any, changes: Words) -> Any:
    """The dataclass with these fields, written as YAML writes them; of a field that is one itself, those of its own."""
    hints = get_type_hints(type(value))
    assert set(changes) <= {each.name for each in fields(value)}, changes
    return replace(value, **{name: _parsed(value, name, hints[name], text) for name, text in changes.items()})


def _parsed(value: Any, name: str, hint: Any, text: Any) -> Any:
    if name == "devices" and text is not None:
        return tuple(device(one, 13000 + number) for number, one in enumerate(text))
    if is_dataclass(getattr(value, name)) and isinstance(text, Mapping):
        return altered(getattr(value, name), text)
    return decode_stored(hint, _with_addresses(text))


def _with_addresses(text: Any) -> Any:
    """Lists of what lies at a PCI address name it as people do: `address: 0000:3b:00.0`."""
    if isinstance(text, list):
        return [_with_addresses(each) for each in text]
    if isinstance(text, Mapping):
        return {key: to_stored(PciAddress.parse(each)) if key == "address" else each for key, each in text.items()}
    return text


def _altered_host(host: Host, changes: dict[str, Any]) -> Host:
    by_address = {PciAddress.parse(address): each for address, each in changes.pop("gpus", {}).items()}
    assert set(by_address) <= {gpu.address for gpu in host.gpus}, f"{host.name} has no such GPU"
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
        case _:
            raise AssertionError(step)


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
