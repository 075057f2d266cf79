"""What a login may do: the privileges that it lacks for each verb, and how it differs from a file of roles.

A file of roles: what the login lacks, and what it has too much, by place. vCenter reports privileges by object,
whatever roles they come from. A role's `where` is for people: which objects are meant follows from what is granted
there. A privilege that no role of the file has is too much wherever it is held.

Verbs: the tables of `plan` and `execute` say what the steps of one plan need; this is for a login that has no plan yet.
`templates/roles/` grants the same, by account. Sources: the methods' and fields' privileges in the vSphere API
reference; for a new VM, the required privileges for common tasks in the vSphere security guide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, assert_never

from gpuops.model.vcenter.host import Cluster, Datastore, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import (
    ASSIGN_TO_POOL,
    IMPLIED,
    LackingPrivileges,
    ObjectKind,
    RoleWish,
    VerbNeed,
    VerbPrivileges,
)
from gpuops.plan.core.privileges import EDIT_CLUSTER, HOT_MOVE
from gpuops.plan.core.steps import COLD_MOVE, GUEST_PRIVILEGES
from gpuops.plan.doctor.examination import WANTED_ON_HOSTS
from gpuops.plan.doctor.finding import Finding, Severity
from gpuops.plan.hosts.change.rolling_plan import MAINTENANCE
from gpuops.plan.vm.clone import PRIVILEGES as CLONE_PRIVILEGES

Granted = Mapping[str, frozenset[str]]
"""Privileges by managed object id; an object that is not there was not told of."""

_FEW: Final = 6
_HOSTS: Final = "Host."


@dataclass(frozen=True, slots=True)
class _Place:
    """Objects of one kind on which a login may do the same."""

    name: str
    privileges: frozenset[str]


def of_roles(wishes: Sequence[RoleWish], granted: Granted, root: str, inventory: Inventory) -> Iterator[Finding]:
    """Yield what this login lacks of the roles that are wanted, and what it may do beyond them.

    `root` is the id of the root folder. There is one finding if vCenter reports no privileges at all.
    """
    if not granted:
        fix = "look at its permissions in the vSphere Client"
        yield Finding(Severity.WARNING, _login(inventory), "vCenter does not tell what this login may do", fix)
        return
    untold = [vm.name for ref, vm in inventory.vms.items() if ref not in granted]
    if untold:
        reason = f"what this login may do with {_some(untold)} is not told"
        yield Finding(Severity.WARNING, _login(inventory), reason, "ask for the read-only role there")
    places = {
        "VM": _vm_places(granted, inventory),
        "host": _places(granted, {ref: host.name for ref, host in inventory.hosts.items()}),
        "cluster": _places(granted, {ref: cluster.name for ref, cluster in inventory.clusters.items()}),
    }
    of_vms = [wish for wish in wishes if _kind(wish) == "VM"]
    named: set[str] = set()
    for place in places["VM"]:
        nearest = _nearest(place, of_vms)
        if nearest is not None and (missing := nearest.privileges - place.privileges):
            named.add(nearest.name)
            yield _lacks(place, nearest, missing)
    for wish in wishes:
        if wish.name not in named and not any(wish.privileges <= place.privileges for place in places[_kind(wish)]):
            yield _nowhere(wish, places[_kind(wish)])
    yield from _surplus(wishes, of_vms, places, granted.get(root, frozenset()))


def _kind(wish: RoleWish) -> str:
    """Return what the role is given on."""
    if wish.privileges <= EDIT_CLUSTER | ASSIGN_TO_POOL:
        return "cluster"
    return "host" if all(privilege.startswith(_HOSTS) for privilege in wish.privileges) else "VM"


def _nearest(place: _Place, wishes: Iterable[RoleWish]) -> RoleWish | None:
    """Return the role that is meant by what is granted there; None = none of them is.

    One that is there in full is meant.
    """
    alike = [wish for wish in wishes if wish.privileges & place.privileges]
    return max(
        alike,
        key=lambda wish: (
            wish.privileges <= place.privileges,
            len(wish.privileges & place.privileges),
            -len(wish.privileges - place.privileges),
        ),
        default=None,
    )


def _lacks(place: _Place, wish: RoleWish, missing: Collection[str]) -> Finding:
    fix = f"give {wish.name} there; gpuops roles show tells whether vCenter's role of that name is short of it"
    return Finding(Severity.WARNING, place.name, f"of {wish.name} this login lacks {_some(missing)}", fix)


def _nowhere(wish: RoleWish, places: Sequence[_Place]) -> Finding:
    nearest = max(places, key=lambda place: len(wish.privileges & place.privileges), default=None)
    reason = f"this login has it on no {_kind(wish)}"
    if nearest is not None and nearest.privileges & wish.privileges:
        reason += f"; on {nearest.name} it lacks {_some(wish.privileges - nearest.privileges)}"
    return Finding(Severity.WARNING, wish.name, reason, f"give it on: {wish.where}; or leave it out of the file")


def _surplus(
    wishes: Sequence[RoleWish],
    of_vms: Sequence[RoleWish],
    places: Mapping[str, Sequence[_Place]],
    at_root: frozenset[str],
) -> Iterator[Finding]:
    """Yield each surplus once, with all the places where it is held: what is held at the root is held everywhere.

    What a role for VMs holds means nothing on a host or cluster that it is propagated to, nor theirs on a VM.
    """
    role_privileges = frozenset(privilege for wish in wishes for privilege in wish.privileges)
    elsewhere = frozenset(privilege for wish in wishes if wish not in of_vms for privilege in wish.privileges)
    everywhere = at_root - IMPLIED - role_privileges
    places_by_surplus: dict[frozenset[str], list[str]] = defaultdict(list)
    if everywhere:
        places_by_surplus[everywhere].append("the whole vCenter")
    for kind, object_place in ((kind, place) for kind, found_there in places.items() for place in found_there):
        expected = role_privileges if kind != "VM" else elsewhere | _in_full(object_place, of_vms)
        beyond = object_place.privileges - expected - everywhere
        if beyond:
            places_by_surplus[beyond].append(object_place.name)
    for privileges, names in places_by_surplus.items():
        reason = f"this login also has {_some(privileges)}: no role of the file gives it that there"
        fix = "take it away, or write it into the file where it is meant"
        yield Finding(Severity.WARNING, _some(names, _FEW // 2), reason, fix)


def _in_full(place: _Place, wishes: Iterable[RoleWish]) -> frozenset[str]:
    """Return what the roles that are there hold together.

    Where none is there in full, what the one that is meant would.
    """
    full = [wish.privileges for wish in wishes if wish.privileges <= place.privileges]
    if full:
        return frozenset().union(*full)
    nearest = _nearest(place, wishes)
    return nearest.privileges if nearest is not None else frozenset()


def _vm_places(granted: Granted, inventory: Inventory) -> tuple[_Place, ...]:
    without_implied = {ref: privileges - IMPLIED for ref, privileges in granted.items()}
    return tuple(_Place(name, vm_privileges) for name, vm_privileges in places_of_vms(without_implied, inventory))


def places_of_vms(granted: Granted, inventory: Inventory) -> tuple[tuple[str, frozenset[str]], ...]:
    """Folders by what the login may do with the VMs in them; one in which it differs is two places, by their VMs."""
    names_by_place: dict[tuple[str, frozenset[str]], list[str]] = defaultdict(list)
    for ref, vm in inventory.vms.items():
        if ref in granted:
            names_by_place[vm.folder, granted[ref]].append(vm.name)
    halved = [folder for folder, _ in names_by_place]
    return tuple(
        (folder if folder and halved.count(folder) == 1 else _some(names, _FEW // 2), has)
        for (folder, has), names in sorted(names_by_place.items(), key=lambda pair: pair[0][0])
    )


def _places(granted: Granted, names: Mapping[str, str]) -> tuple[_Place, ...]:
    return tuple(
        _Place(name, granted[ref] - IMPLIED) for ref, name in sorted(names.items(), key=lambda pair: pair[1])
        if ref in granted
    )  # fmt: skip


def _some(names: Collection[str], most: int = _FEW) -> str:
    """Return the first of them in order, and how many more there are."""
    first_names = sorted(names)[: most if len(names) > most + 1 else None]
    further_count = len(names) - len(first_names)
    return ", ".join(first_names) + (f" and {further_count} more" if further_count else "")


def _login(inventory: Inventory) -> str:
    return inventory.user or "login"


MOST_VMS: Final = 1000
"""The number of VMs to check at most: some of each folder, because roles are given on folders."""
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
    Verb("defrag", {_VM: HOT_MOVE}),
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
    """Return the objects by their kind; of more than `MOST_VMS` VMs those that come first in their folders."""
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
    """Return all that any verb needs, by kind of object."""
    return {kind: frozenset().union(*(verb.needs.get(kind, ()) for verb in VERBS)) for kind in ObjectKind}


def of_verbs(granted: Mapping[str, frozenset[str]], inventory: Inventory) -> tuple[VerbPrivileges, ...]:
    """Return each verb with what the login lacks for it.

    `granted`: by object the privileges that vCenter reported.
    """
    objects = objects_to_ask(inventory)
    return tuple(
        VerbPrivileges(
            verb.name,
            verb.role,
            tuple(
                _need(kind, verb_privileges, objects[kind], granted, inventory)
                for kind, verb_privileges in verb.needs.items()
            ),
        )
        for verb in VERBS
    )


def _need(
    kind: ObjectKind,
    verb_privileges: frozenset[str],
    refs: Collection[str],
    granted: Mapping[str, frozenset[str]],
    inventory: Inventory,
) -> VerbNeed:
    usable = {ref: verb_privileges & granted[ref] for ref in refs if ref in granted}
    places_by_lack: dict[frozenset[str], list[str]] = defaultdict(list)
    for name, has in _places_with_privileges(kind, usable, inventory):
        places_by_lack[verb_privileges - has].append(name)
    allowed = tuple(places_by_lack.pop(frozenset(), ()))
    order = sorted(places_by_lack.items(), key=lambda pair: (-len(pair[1]), sorted(pair[0])))
    lacking = tuple(LackingPrivileges(privileges, tuple(places)) for privileges, places in order)
    return VerbNeed(kind, verb_privileges, allowed, lacking, untold=len(refs) - len(usable))


def _places_with_privileges(
    kind: ObjectKind, usable: Mapping[str, frozenset[str]], inventory: Inventory
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield where a login may do the same, and what: folders of VMs; hosts, clusters and datastores by name."""
    if kind is ObjectKind.VM or kind is ObjectKind.TEMPLATE:
        yield from places_of_vms(usable, inventory)
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
    yield from sorted(((named[ref].name, has) for ref, has in usable.items()), key=lambda pair: pair[0])
