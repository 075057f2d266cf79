"""Which privileges each verb needs on which objects, and what a login lacks of them, place by place.

The tables of `plan` and `execute` say what the steps of one plan need; this is for a login that has no plan yet.
`templates/roles/` grants the same, by account. Sources: the methods' and fields' privileges in the vSphere API
reference; for a new VM, the required privileges for common tasks in the vSphere security guide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, assert_never

from gpuops.model.vcenter.host import Cluster, Datastore, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import LackingPrivileges, ObjectKind, VerbNeed, VerbPrivileges
from gpuops.model.vcenter.role import ASSIGN_TO_POOL
from gpuops.plan.core.privileges import EDIT_CLUSTER, HOT_MOVE
from gpuops.plan.core.steps import COLD_MOVE, GUEST_PRIVILEGES
from gpuops.plan.doctor.examination import WANTED_ON_HOSTS
from gpuops.plan.doctor.roles import places_of_vms
from gpuops.plan.hosts.change.rolling_plan import MAINTENANCE
from gpuops.plan.vm.clone import PRIVILEGES as CLONE_PRIVILEGES

MOST_VMS: Final = 1000
"""Of so many VMs a login is asked at the most: some of each folder, for a role is given on folders."""
_POWER: Final = frozenset({"VirtualMachine.Interact.PowerOn", "VirtualMachine.Interact.PowerOff"})
_DEVICES: Final = frozenset(
    f"VirtualMachine.Config.{setting}"
    for setting in ("AddRemoveDevice", "EditDevice", "AdvancedConfig", "Resource", "CPUCount")
)
_NIGHT: Final = _POWER | {"VirtualMachine.Interact.Suspend", "Global.SetCustomField"}
_MADE_FOR_JOBS: Final = frozenset(
    {
        "VirtualMachine.Inventory.CreateFromExisting",
        "VirtualMachine.Inventory.Delete",
        *(f"VirtualMachine.Config.{setting}" for setting in (
            "AddRemoveDevice", "AdvancedConfig", "Annotation", "CPUCount", "Memory", "Resource",
        )),
    }
)  # fmt: skip
_VM, _HOST, _CLUSTER = ObjectKind.VM, ObjectKind.HOST, ObjectKind.CLUSTER


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb as it is typed, what it needs by kind of object, and the template with the role for it ('' = none)."""

    name: str
    needs: Mapping[ObjectKind, frozenset[str]]
    role: str = ""


VERBS: Final = (
    Verb("inventory, capacity, place", {}),
    Verb("attach, detach", {_VM: _DEVICES | _POWER}, "roles/attach.yaml"),
    Verb("attach --move cold", {_VM: frozenset(COLD_MOVE), _CLUSTER: ASSIGN_TO_POOL}, "roles/attach.yaml"),
    Verb("rotate night, day", {_VM: _NIGHT}, "roles/night.yaml"),
    Verb("rotate, checkpoint hook", {_VM: frozenset(GUEST_PRIVILEGES)}, "roles/night.yaml"),
    Verb("rotate, drs_override", {_CLUSTER: EDIT_CLUSTER}, "roles/night.yaml"),
    Verb("job run", {_VM: frozenset({*GUEST_PRIVILEGES, "VirtualMachine.GuestOperations.Modify"})}, "roles/jobs.yaml"),
    Verb(
        "job run, VMs of a template",
        {
            ObjectKind.TEMPLATE: frozenset(CLONE_PRIVILEGES),
            _VM: _MADE_FOR_JOBS,
            _CLUSTER: ASSIGN_TO_POOL,
            ObjectKind.DATASTORE: frozenset({"Datastore.AllocateSpace"}),
        },
        "roles/jobs.yaml",
    ),
    Verb("scheduler, mode, passthrough", {_HOST: WANTED_ON_HOSTS}, "roles/host-settings.yaml"),
    Verb(
        "--reboot rolling, change",
        {_HOST: WANTED_ON_HOSTS | {MAINTENANCE}, _VM: HOT_MOVE | _POWER},
        "roles/host-settings.yaml",
    ),
    Verb("defrag --execute", {_VM: HOT_MOVE}),
    Verb(
        "new VM from a template",
        {
            ObjectKind.TEMPLATE: frozenset(CLONE_PRIVILEGES),
            _VM: frozenset({"VirtualMachine.Inventory.CreateFromExisting"}),  # of its folder, which passes it on
            _CLUSTER: ASSIGN_TO_POOL,
            ObjectKind.DATASTORE: frozenset({"Datastore.AllocateSpace"}),
        },
    ),
)
"""In the order in which they are shown."""


def objects_to_ask(inventory: Inventory) -> Mapping[ObjectKind, tuple[str, ...]]:
    """The objects by their kind; of more than `MOST_VMS` VMs those that come first in their folders."""
    folders: dict[str, list[str]] = defaultdict(list)
    for vm in inventory.vms.values():
        if not vm.template:
            folders[vm.folder].append(vm.ref)
    in_turn = [ref for row in zip_longest(*folders.values()) for ref in row if ref is not None]
    return {
        ObjectKind.VM: tuple(in_turn[:MOST_VMS]),
        ObjectKind.TEMPLATE: tuple(vm.ref for vm in inventory.vms.values() if vm.template)[:MOST_VMS],
        ObjectKind.HOST: tuple(inventory.hosts),
        ObjectKind.CLUSTER: tuple(inventory.clusters),
        ObjectKind.DATASTORE: tuple(inventory.datastores),
    }


def privileges_to_ask() -> Mapping[ObjectKind, frozenset[str]]:
    """All that any verb needs, by kind of object."""
    return {kind: frozenset().union(*(verb.needs.get(kind, ()) for verb in VERBS)) for kind in ObjectKind}


def of_verbs(held: Mapping[str, frozenset[str]], inventory: Inventory) -> tuple[VerbPrivileges, ...]:
    """Each verb with what the login lacks for it. `held`: by object that vCenter told of, what it has of that."""
    asked = objects_to_ask(inventory)
    return tuple(
        VerbPrivileges(
            verb.name,
            verb.role,
            tuple(_need(kind, wanted, asked[kind], held, inventory) for kind, wanted in verb.needs.items()),
        )
        for verb in VERBS
    )


def _need(
    kind: ObjectKind,
    wanted: frozenset[str],
    refs: Collection[str],
    held: Mapping[str, frozenset[str]],
    inventory: Inventory,
) -> VerbNeed:
    told = {ref: wanted & held[ref] for ref in refs if ref in held}
    found: dict[frozenset[str], list[str]] = defaultdict(list)
    for name, has in _places_with_privileges(kind, told, inventory):
        found[wanted - has].append(name)
    allowed = tuple(found.pop(frozenset(), ()))
    order = sorted(found.items(), key=lambda each: (-len(each[1]), sorted(each[0])))
    lacking = tuple(LackingPrivileges(privileges, tuple(places)) for privileges, places in order)
    return VerbNeed(kind, wanted, allowed, lacking, untold=len(refs) - len(told))


def _places_with_privileges(
    kind: ObjectKind, told: Mapping[str, frozenset[str]], inventory: Inventory
) -> Iterator[tuple[str, frozenset[str]]]:
    """Where a login may do the same, and what: folders of VMs; hosts, clusters and datastores by name."""
    if kind is ObjectKind.VM or kind is ObjectKind.TEMPLATE:
        yield from places_of_vms(told, inventory)
        return
    named: Mapping[str, Host | Cluster | Datastore]
    match kind:
        case ObjectKind.HOST:
            named = inventory.hosts
        case ObjectKind.CLUSTER:
            named = inventory.clusters
        case ObjectKind.DATASTORE:
            named = inventory.datastores
        case ObjectKind.FOLDER | ObjectKind.PORT_GROUP:
            named = {}  # no verb of the table needs anything there
        case _:
            assert_never(kind)
    yield from sorted(((named[ref].name, has) for ref, has in told.items()), key=lambda each: each[0])
