"""Findings of what a login may do, beside the roles of a file: what it lacks, and what it has too much, by place.

vCenter tells privileges by object, whatever roles they come from. A role's `where` is for people: which objects are
meant is told from what is granted there. A privilege that no role of the file has is too much wherever it is held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.role import ASSIGN_TO_POOL, IMPLIED, RoleWish
from gpuops.plan.core.privileges import EDIT_CLUSTER
from gpuops.plan.doctor.finding import Finding, Severity

Granted = Mapping[str, frozenset[str]]
"""Privileges by managed object id; an object that is not there was not told of."""

_FEW: Final = 6
_HOSTS: Final = "Host."


@dataclass(frozen=True, slots=True)
class _Place:
    """Objects of one kind on which a login may do the same."""

    name: str
    held: frozenset[str]


def of_roles(wishes: Sequence[RoleWish], granted: Granted, root: str, inventory: Inventory) -> Iterator[Finding]:
    """What this login lacks of the roles that are wanted, and what it may do beyond them.

    `root` is the id of the root folder. Where nothing at all was told there is one finding.
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
        if nearest is not None and (missing := nearest.privileges - place.held):
            named.add(nearest.name)
            yield _lacks(place, nearest, missing)
    for wish in wishes:
        if wish.name not in named and not any(wish.privileges <= place.held for place in places[_kind(wish)]):
            yield _nowhere(wish, places[_kind(wish)])
    yield from _surplus(wishes, of_vms, places, granted.get(root, frozenset()))


def _kind(wish: RoleWish) -> str:
    """What the role is given on."""
    if wish.privileges <= EDIT_CLUSTER | ASSIGN_TO_POOL:
        return "cluster"
    return "host" if all(privilege.startswith(_HOSTS) for privilege in wish.privileges) else "VM"


def _nearest(place: _Place, wishes: Iterable[RoleWish]) -> RoleWish | None:
    """The role that is meant by what is granted there; None = none of them is. One that is there in full is meant."""
    alike = [wish for wish in wishes if wish.privileges & place.held]
    return max(
        alike,
        key=lambda wish: (
            wish.privileges <= place.held,
            len(wish.privileges & place.held),
            -len(wish.privileges - place.held),
        ),
        default=None,
    )


def _lacks(place: _Place, wish: RoleWish, missing: Collection[str]) -> Finding:
    fix = f"give {wish.name} there; gpuops roles show tells whether vCenter's role of that name is short of it"
    return Finding(Severity.WARNING, place.name, f"of {wish.name} this login lacks {_some(missing)}", fix)


def _nowhere(wish: RoleWish, places: Sequence[_Place]) -> Finding:
    nearest = max(places, key=lambda place: len(wish.privileges & place.held), default=None)
    reason = f"this login has it on no {_kind(wish)}"
    if nearest is not None and nearest.held & wish.privileges:
        reason += f"; on {nearest.name} it lacks {_some(wish.privileges - nearest.held)}"
    return Finding(Severity.WARNING, wish.name, reason, f"give it on: {wish.where}; or leave it out of the file")


def _surplus(
    wishes: Sequence[RoleWish],
    of_vms: Sequence[RoleWish],
    places: Mapping[str, Sequence[_Place]],
    at_root: frozenset[str],
) -> Iterator[Finding]:
    """Each surplus once, with all the places where it is held: what is held at the root is held everywhere.

    What a role for VMs holds means nothing on a host or cluster that it is propagated to, nor theirs on a VM.
    """
    known = frozenset(privilege for wish in wishes for privilege in wish.privileges)
    elsewhere = frozenset(privilege for wish in wishes if wish not in of_vms for privilege in wish.privileges)
    everywhere = at_root - IMPLIED - known
    found: dict[frozenset[str], list[str]] = defaultdict(list)
    if everywhere:
        found[everywhere].append("the whole vCenter")
    for kind, each in ((kind, place) for kind, found_there in places.items() for place in found_there):
        wanted = known if kind != "VM" else elsewhere | _in_full(each, of_vms)
        beyond = each.held - wanted - everywhere
        if beyond:
            found[beyond].append(each.name)
    for privileges, names in found.items():
        reason = f"this login also has {_some(privileges)}: no role of the file gives it that there"
        fix = "take it away, or write it into the file where it is meant"
        yield Finding(Severity.WARNING, _some(names, _FEW // 2), reason, fix)


def _in_full(place: _Place, wishes: Iterable[RoleWish]) -> frozenset[str]:
    """What the roles that are there hold together; where none is there in full, what the one that is meant would."""
    full = [wish.privileges for wish in wishes if wish.privileges <= place.held]
    if full:
        return frozenset().union(*full)
    nearest = _nearest(place, wishes)
    return nearest.privileges if nearest is not None else frozenset()


def _vm_places(granted: Granted, inventory: Inventory) -> tuple[_Place, ...]:
    found = {ref: privileges - IMPLIED for ref, privileges in granted.items()}
    return tuple(_Place(name, held) for name, held in places_of_vms(found, inventory))


def places_of_vms(held: Granted, inventory: Inventory) -> tuple[tuple[str, frozenset[str]], ...]:
    """Folders by what the login may do with the VMs in them; one in which it differs is two places, by their VMs."""
    found: dict[tuple[str, frozenset[str]], list[str]] = defaultdict(list)
    for ref, vm in inventory.vms.items():
        if ref in held:
            found[vm.folder, held[ref]].append(vm.name)
    halved = [folder for folder, _ in found]
    return tuple(
        (folder if folder and halved.count(folder) == 1 else _some(names, _FEW // 2), has)
        for (folder, has), names in sorted(found.items(), key=lambda each: each[0][0])
    )


def _places(granted: Granted, names: Mapping[str, str]) -> tuple[_Place, ...]:
    return tuple(
        _Place(name, granted[ref] - IMPLIED) for ref, name in sorted(names.items(), key=lambda each: each[1])
        if ref in granted
    )  # fmt: skip


def _some(names: Collection[str], most: int = _FEW) -> str:
    """The first of them in order, and how many more there are."""
    shown = sorted(names)[: most if len(names) > most + 1 else None]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _login(inventory: Inventory) -> str:
    return inventory.user or "login"
