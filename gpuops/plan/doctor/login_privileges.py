"""Compares a login's privileges with what each command needs, and with a file of roles.

vCenter reports privileges by object, and not the roles that they come from. A role's `where` in the file is a text for
people. So `compare_with_roles` compares each object with the role that shares the most privileges with it.

`compare_with_commands` needs no plan. The privileges for the steps of one plan are in `plan/core/privileges.py`; the
files below `templates/roles/` grant the same. Sources: the privileges of methods and fields in the vSphere API
reference; for a new VM, "Required Privileges for Common Tasks" in the vSphere security guide.
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
from gpuops.plan.doctor.host_findings import Finding, Severity
from gpuops.plan.hosts.change.rolling_plan import MAINTENANCE
from gpuops.plan.vm.clone import PRIVILEGES as CLONE_PRIVILEGES

Granted = Mapping[str, frozenset[str]]
"""Privileges by managed object id. Without an entry, vCenter did not report the object's privileges."""

_SHOWN_NAMES: Final = 6
_HOST_PREFIX: Final = "Host."


@dataclass(frozen=True, slots=True)
class _Place:
    """Objects of one type on which a login has the same privileges."""

    name: str
    privileges: frozenset[str]


def compare_with_roles(
    wishes: Sequence[RoleWish], granted: Granted, root: str, inventory: Inventory
) -> Iterator[Finding]:
    """Yield the privileges of the roles that this login lacks, and its privileges that no role contains.

    `root`: id of the root folder. If vCenter reports no privileges at all, the only finding says so.
    """
    login = inventory.user or "login"
    if not granted:
        fix = "look at its permissions in the vSphere Client"
        yield Finding(Severity.WARNING, login, "vCenter does not report the privileges of this login", fix)
        return
    unreported = [vm.name for ref, vm in inventory.vms.items() if ref not in granted]
    if unreported:
        reason = f"vCenter does not report the privileges of this login on {_some(unreported)}"
        yield Finding(Severity.WARNING, login, reason, "ask for the read-only role there")
    # Every object has the implied privileges: they tell nothing about roles.
    without_implied = {ref: privileges - IMPLIED for ref, privileges in granted.items()}
    places = {
        "VM": tuple(_Place(name, privileges) for name, privileges in places_of_vms(without_implied, inventory)),
        "host": _places(without_implied, {ref: host.name for ref, host in inventory.hosts.items()}),
        "cluster": _places(without_implied, {ref: cluster.name for ref, cluster in inventory.clusters.items()}),
    }
    vm_roles = [wish for wish in wishes if _kind(wish) == "VM"]
    incomplete_roles: set[str] = set()
    for place in places["VM"]:
        role = _nearest_role(place, vm_roles)
        if role is not None and (missing := role.privileges - place.privileges):
            incomplete_roles.add(role.name)
            reason = f"this login lacks {_some(missing)} of role {role.name}"
            fix = f"give {role.name} there; `gpuops roles show` shows whether vCenter's role of that name lacks it"
            yield Finding(Severity.WARNING, place.name, reason, fix)
    for wish in wishes:
        role_places = places[_kind(wish)]
        is_complete = any(wish.privileges <= place.privileges for place in role_places)
        if wish.name not in incomplete_roles and not is_complete:
            yield _missing_everywhere(wish, role_places)
    yield from _surplus(wishes, vm_roles, places, granted.get(root, frozenset()))


def _kind(wish: RoleWish) -> str:
    """Return the type of the objects that the role is for, judged by its privileges."""
    if wish.privileges <= EDIT_CLUSTER | ASSIGN_TO_POOL:
        return "cluster"
    return "host" if all(privilege.startswith(_HOST_PREFIX) for privilege in wish.privileges) else "VM"


def _nearest_role(place: _Place, wishes: Iterable[RoleWish]) -> RoleWish | None:
    """Return the role that the login probably has there; None if it has no privilege of any of them.

    A role of which all privileges are granted comes first, then the one with the most granted privileges.
    """
    overlapping = [wish for wish in wishes if wish.privileges & place.privileges]
    return max(
        overlapping,
        key=lambda wish: (
            wish.privileges <= place.privileges,
            len(wish.privileges & place.privileges),
            -len(wish.privileges - place.privileges),
        ),
        default=None,
    )


def _missing_everywhere(wish: RoleWish, places: Sequence[_Place]) -> Finding:
    """Return the finding that the login has this role nowhere, with what it lacks in the place where it lacks least."""
    nearest = max(places, key=lambda place: len(wish.privileges & place.privileges), default=None)
    reason = f"this login has this role on no {_kind(wish)}"
    if nearest is not None and nearest.privileges & wish.privileges:
        reason += f"; on {nearest.name} it lacks {_some(wish.privileges - nearest.privileges)}"
    return Finding(Severity.WARNING, wish.name, reason, f"give it on {wish.where}, or remove it from the file of roles")


def _surplus(
    wishes: Sequence[RoleWish],
    vm_roles: Sequence[RoleWish],
    places: Mapping[str, Sequence[_Place]],
    at_root: frozenset[str],
) -> Iterator[Finding]:
    """Yield each set of surplus privileges once, with the names of all places that have it.

    A privilege at the root folder counts once for the whole vCenter, because it is propagated. Hosts and clusters may
    have the privileges of any role: a role for VMs is often given on a folder above them.
    """
    role_privileges = frozenset(privilege for wish in wishes for privilege in wish.privileges)
    other_roles = frozenset(privilege for wish in wishes if wish not in vm_roles for privilege in wish.privileges)
    everywhere = at_root - IMPLIED - role_privileges
    names_by_surplus: dict[frozenset[str], list[str]] = defaultdict(list)
    if everywhere:
        names_by_surplus[everywhere].append("the whole vCenter")
    for kind, kind_places in places.items():
        for place in kind_places:
            expected = role_privileges if kind != "VM" else other_roles | _expected_on_vms(place, vm_roles)
            surplus = place.privileges - expected - everywhere
            if surplus:
                names_by_surplus[surplus].append(place.name)
    for privileges, names in names_by_surplus.items():
        reason = f"this login also has {_some(privileges)}, which no role of the file gives it there"
        fix = "take the privilege away, or add it to the role in the file"
        yield Finding(Severity.WARNING, _some(names, _SHOWN_NAMES // 2), reason, fix)


def _expected_on_vms(place: _Place, vm_roles: Iterable[RoleWish]) -> frozenset[str]:
    """Return the privileges of the roles that the login has there in full, or else of the nearest role."""
    complete_roles = [wish.privileges for wish in vm_roles if wish.privileges <= place.privileges]
    if complete_roles:
        return frozenset().union(*complete_roles)
    nearest = _nearest_role(place, vm_roles)
    return nearest.privileges if nearest is not None else frozenset()


def places_of_vms(granted: Granted, inventory: Inventory) -> tuple[tuple[str, frozenset[str]], ...]:
    """Return the folders of VMs with the privileges on them. A folder whose VMs differ gives one row for each set of
    privileges, named after some of its VMs."""
    names_by_place: dict[tuple[str, frozenset[str]], list[str]] = defaultdict(list)
    for ref, vm in inventory.vms.items():
        if ref in granted:
            names_by_place[vm.folder, granted[ref]].append(vm.name)
    folders = [folder for folder, _ in names_by_place]
    return tuple(
        (folder if folder and folders.count(folder) == 1 else _some(names, _SHOWN_NAMES // 2), privileges)
        for (folder, privileges), names in sorted(names_by_place.items(), key=lambda pair: pair[0][0])
    )


def _places(granted: Granted, names: Mapping[str, str]) -> tuple[_Place, ...]:
    """Return these objects with the privileges on them, by name. `names`: ref -> name of the object."""
    by_name = sorted(names.items(), key=lambda pair: pair[1])
    return tuple(_Place(name, granted[ref]) for ref, name in by_name if ref in granted)


def _some(names: Collection[str], most: int = _SHOWN_NAMES) -> str:
    """Return the first of them in order, and how many more there are."""
    first_names = sorted(names)[: most if len(names) > most + 1 else None]
    further_count = len(names) - len(first_names)
    return ", ".join(first_names) + (f" and {further_count} more" if further_count else "")


MOST_VMS: Final = 1000
"""The largest number of VMs to check. Some are taken of each folder, because roles are given on folders."""
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
    """A command, the privileges it needs by type of object, and the role template that has them ('' = none)."""

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
            _VM: frozenset({"VirtualMachine.Inventory.CreateFromExisting"}),  # needed on the folder, whose VMs show it
            _CLUSTER: ASSIGN_TO_POOL,
            ObjectKind.DATASTORE: frozenset({"Datastore.AllocateSpace"}),
        },
    ),
)
"""In the order in which they are shown."""


def objects_to_ask(inventory: Inventory) -> Mapping[ObjectKind, tuple[str, ...]]:
    """Return the refs of the objects to check, by type: at most `MOST_VMS` VMs, the first of each folder first."""
    folders: dict[str, list[str]] = defaultdict(list)
    for vm in inventory.vms.values():
        if not vm.template:
            folders[vm.folder].append(vm.ref)
    round_robin = [ref for row in zip_longest(*folders.values()) for ref in row if ref is not None]
    return {
        ObjectKind.VM: tuple(round_robin[:MOST_VMS]),
        ObjectKind.TEMPLATE: tuple(vm.ref for vm in inventory.vms.values() if vm.template)[:MOST_VMS],
        ObjectKind.HOST: tuple(inventory.hosts),
        ObjectKind.CLUSTER: tuple(inventory.clusters),
        ObjectKind.DATASTORE: tuple(inventory.datastores),
    }


def privileges_to_ask() -> Mapping[ObjectKind, frozenset[str]]:
    """Return the privileges that any command needs, by type of object."""
    return {kind: frozenset().union(*(verb.needs.get(kind, ()) for verb in VERBS)) for kind in ObjectKind}


def compare_with_commands(granted: Mapping[str, frozenset[str]], inventory: Inventory) -> tuple[VerbPrivileges, ...]:
    """Return for each command the privileges that the login lacks, and where. `granted`: as vCenter reports them."""
    objects, needs_by_verb = objects_to_ask(inventory), []
    for verb in VERBS:
        needs = (_need(kind, needed, objects[kind], granted, inventory) for kind, needed in verb.needs.items())
        needs_by_verb.append(VerbPrivileges(verb.name, verb.role, tuple(needs)))
    return tuple(needs_by_verb)


def _need(
    kind: ObjectKind, needed: frozenset[str], refs: Collection[str], granted: Granted, inventory: Inventory
) -> VerbNeed:
    """Return the places where the login has all needed privileges, and those where some are missing."""
    usable = {ref: needed & granted[ref] for ref in refs if ref in granted}
    names_by_lack: dict[frozenset[str], list[str]] = defaultdict(list)
    for name, privileges in _places_with_privileges(kind, usable, inventory):
        names_by_lack[needed - privileges].append(name)
    allowed = tuple(names_by_lack.pop(frozenset(), ()))  # the places that lack nothing
    order = sorted(names_by_lack.items(), key=lambda pair: (-len(pair[1]), sorted(pair[0])))
    lacking = tuple(LackingPrivileges(privileges, tuple(places)) for privileges, places in order)
    return VerbNeed(kind, needed, allowed, lacking, untold=len(refs) - len(usable))


def _places_with_privileges(
    kind: ObjectKind, usable: Mapping[str, frozenset[str]], inventory: Inventory
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the name of each place and the privileges there: VMs by folder, other objects by their own name."""
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
            named = {}  # no command of `VERBS` needs privileges on these
        case _:
            assert_never(kind)
    places = ((named[ref].name, privileges) for ref, privileges in usable.items())
    yield from sorted(places, key=lambda place: place[0])
