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
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.rejection import Rejection
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
    cases = [
        case_of(kind, {**document, "name": f"{path.stem}: {document['name']}"})
        for path in sorted((CASES / folder).glob("*.yaml"))
        for document in yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    ]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "each case has a name of its own"
    return cases


def case_of(kind: type[CaseKind], keys: Words) -> CaseKind:
    """The case with these keys. Raises TypeError for one that is no field of it."""
    return kind(**keys)


def compare(actual: Words, expect: Words, unless_named: Collection[str]) -> None:
    """What came out is what the case expects; of `unless_named` it is nothing where the case does not name it."""
    assert set(expect) <= set(actual), f"unknown expectations: {sorted(set(expect) - set(actual))}"
    compared = {key: text for key, text in actual.items() if key in expect or (key in unless_named and text)}
    assert compared == dict(expect), came_out(compared)


def came_out(actual: Any) -> str:
    """What came out, as the case would write it."""
    return "came out:\n" + yaml.safe_dump(actual, sort_keys=False, width=1000)


def snapshot(case: Case) -> Inventory:
    """The case's inventory, changed as it says, with earlier requests carried out."""
    inventory = with_changes(SNAPSHOTS[case.inventory](), case.change)
    for request_words in case.after:
        plan = plan_request(request_words, inventory)
        assert plan.feasible, f"{request_words}: {[str(rejection) for rejection in plan.rejections]}"
        inventory = carried_out(plan, inventory)
    return inventory


def with_changes(inventory: Inventory, change: Mapping[str, Words]) -> Inventory:
    """The inventory with what a case changes in it."""
    assert set(change) <= {"vms", "hosts", "clusters", "vcenter"}, f"unknown changes: {sorted(change)}"
    for name, changes in change.get("vms", {}).items():
        inventory = inventory.with_vm(with_values(inventory.find_vm(name), changes))
    for name, changes in change.get("hosts", {}).items():
        inventory = inventory.with_hosts([with_host_values(inventory.find_host(name), changes)])
    for name, changes in change.get("clusters", {}).items():
        [cluster] = [named_cluster for named_cluster in inventory.clusters.values() if named_cluster.name == name]
        inventory = replace(inventory, clusters={**inventory.clusters, cluster.ref: with_values(cluster, changes)})
    return with_values(inventory, change.get("vcenter", {}))


def plan_request(request_words: Mapping[str, Words], inventory: Inventory) -> Plan:
    [(verb, options)] = request_words.items()
    kind = VERBS[verb]
    hints = get_type_hints(kind)
    request = kind(**{name: decode_stored(hints[name], text) for name, text in options.items()})
    return request.plan(inventory, catalog(), inventory.taken_at)


def carried_out(plan: Plan, inventory: Inventory) -> Inventory:
    for step in plan.steps:
        inventory = project(step, inventory, catalog())
    return inventory


def with_values(record: Any, changes: Words) -> Any:
    """The dataclass with these fields, written as YAML writes them; of a field that is one itself, those of its own."""
    hints = get_type_hints(type(record))
    assert set(changes) <= {field.name for field in fields(record)}, changes
    return replace(record, **{name: _parse_value(record, name, hints[name], text) for name, text in changes.items()})


def _parse_value(record: Any, name: str, hint: Any, text: Any) -> Any:
    if name == "devices" and text is not None:
        return tuple(device(device_text, 13000 + number) for number, device_text in enumerate(text))
    if is_dataclass(getattr(record, name)) and isinstance(text, Mapping):
        return with_values(getattr(record, name), text)
    return decode_stored(hint, _with_addresses(text))


def _with_addresses(text: Any) -> Any:
    """Lists of what lies at a PCI address name it as people do: `address: 0000:3b:00.0`."""
    if isinstance(text, list):
        return [_with_addresses(part) for part in text]
    if isinstance(text, Mapping):
        return {
            key: to_stored(PciAddress.parse(text_value)) if key == "address" else text_value
            for key, text_value in text.items()
        }
    return text


def with_host_values(host: Host, changes: Words) -> Host:
    """The host with these fields, and its `gpus` with theirs, by address."""
    by_address = {
        PciAddress.parse(address): changes_of_gpu for address, changes_of_gpu in changes.get("gpus", {}).items()
    }
    assert set(by_address) <= {gpu.address for gpu in host.gpus}, f"{host.name} has no such GPU"
    gpus = tuple(with_values(gpu, by_address.get(gpu.address, {})) for gpu in host.gpus)
    return with_values(replace(host, gpus=gpus), {key: text for key, text in changes.items() if key != "gpus"})


def rejection_line(rejection: Rejection, expected: Any) -> Any:
    """The rejection as the case tells it: with its hint where one is expected."""
    return {str(rejection): rejection.hint} if isinstance(expected, dict) else str(rejection)


def step_words(step: Step, inventory: Inventory, expected: Any) -> Any:
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
        vm_device.key: signature(vm_device)
        for vm in inventory.vms.values()
        if vm.name == name
        for vm_device in vm.devices or ()
    }
    extra = dict(change.extra_config)
    baseline = extra.pop(KEY, None)
    words: dict[str, Any] = {
        "reconfigure": name,
        "add": [signature(device) for device in change.add],
        "remove": [devices[key] for key in change.remove],
        "edit": [f"{devices[key]} -> {profile}" for key, profile in change.replace_profile],
        "group": change.device_group,
        "extra_config": extra,
        "memory_locked": change.memory_locked,
        "memory_reservation_mib": change.memory_reservation_mib,
        "cpu_hot_add": change.cpu_hot_add,
        "cores_per_numa_node": change.cores_per_numa_node,
        "baseline": json.loads(baseline) if baseline else baseline,
        "guest_node": [node for device in change.add if (node := getattr(device, "numa_node", None)) is not None],
    }
    return {key: word for key, word in words.items() if word not in (None, [], {})}
