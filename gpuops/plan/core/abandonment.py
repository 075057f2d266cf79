"""Hosts and VMs that an admin gave up (`change abandon`, `rotate abandon`), and which of them are not back yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpuops.model.nights.history import GivenUp, Thing
from gpuops.model.nights.night_record import Original
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm

REMEMBERED: Final = timedelta(days=30)
"""A host or VM that was removed from vCenter is reported for this long; one in vCenter, until it is back."""
NAMED_UNTIL_BACK: Final = "gpuops doctor, change status and rotate status name it until it is back"
_REMOVED: Final = "it is gone from vCenter"


@dataclass(frozen=True, slots=True)
class Missed:
    """A host or VM that was given up and is not back."""

    given: GivenUp
    now: str
    """Its present state: `it is powered off`."""
    move: str
    """What a person must do to bring it back."""

    @property
    def since(self) -> str:
        return f"was given up at {format_zoned_minute(self.given.at)} ({self.given.of}); {self.now}"


def host_now(ref: str, uuid: str | None, inventory: Inventory) -> Host | None:
    """Return the host with this hardware uuid, even if its managed object id has changed; None = it was removed.

    The id decides if the uuid is unknown, and among hosts with one uuid, which some manufacturers give to several.
    """
    same_id = inventory.hosts.get(ref)
    if uuid is None or (same_id is not None and same_id.uuid in (uuid, None)):
        return same_id
    same = [host for host in inventory.hosts.values() if host.uuid == uuid]
    return same[0] if len(same) == 1 else None


def vm_now(ref: str, uuid: str | None, inventory: Inventory) -> Vm | None:
    """Return the VM with this instance uuid, even if its managed object id has changed; None = it was removed."""
    same_id = inventory.vms.get(ref)
    if uuid is None or (same_id is not None and same_id.instance_uuid in (uuid, None)):
        return same_id
    same = [vm for vm in inventory.vms.values() if vm.instance_uuid == uuid]
    return same[0] if len(same) == 1 else None


def is_back(abandoned: GivenUp, inventory: Inventory) -> bool:
    """Return whether a host is connected and not in maintenance mode, or a VM is on or off as it was before."""
    if abandoned.thing is Thing.HOST:
        host = host_now(abandoned.ref, abandoned.uuid, inventory)
        return host is not None and host.connected is True and host.in_maintenance is False
    vm = vm_now(abandoned.ref, abandoned.uuid, inventory)
    if vm is None or vm.power is None or vm.connected is False:
        return False
    return (vm.power is PowerState.ON) is abandoned.runs


def missed(given_up: Iterable[GivenUp], inventory: Inventory) -> tuple[Missed, ...]:
    """Return those that gpuops still reports: not back, and not removed from vCenter for longer than `REMEMBERED`."""
    missed_ones: list[Missed] = []
    for abandoned in given_up:
        find_now = host_now if abandoned.thing is Thing.HOST else vm_now
        exists = find_now(abandoned.ref, abandoned.uuid, inventory) is not None
        if not is_back(abandoned, inventory) and (exists or inventory.taken_at - abandoned.at < REMEMBERED):
            missed_ones.append(Missed(abandoned, *_state_and_move(abandoned, inventory)))
    return tuple(missed_ones)


def state_of(abandoned: GivenUp, inventory: Inventory) -> str:
    """Return its present state for a message: `it is powered off`."""
    return _state_and_move(abandoned, inventory)[0]


def _state_and_move(abandoned: GivenUp, inventory: Inventory) -> tuple[str, str]:
    """Return the present state, and what a person must do to bring it back."""
    if abandoned.thing is Thing.HOST:
        host = host_now(abandoned.ref, abandoned.uuid, inventory)
        if host is None:
            return _REMOVED, "add the host to vCenter again if it is still needed"
        if host.connected is not True:
            move = "start the host and reconnect it in vCenter, then take it out of maintenance mode"
            return "it is not connected", move
        state = "it is in maintenance mode" if host.in_maintenance is not False else "it serves VMs"
        return state, "take it out of maintenance mode, when the work is done"
    vm = vm_now(abandoned.ref, abandoned.uuid, inventory)
    if vm is None:
        return _REMOVED, "nothing: a deleted VM does not come back"
    move = "power it on in vCenter" if abandoned.runs else "shut it down in vCenter"
    if vm.connected is False or vm.power is None:
        return "it is not connected, its state cannot be read", move
    return {PowerState.ON: "it runs", PowerState.OFF: "it is powered off"}.get(vm.power, "it is suspended"), move


@dataclass(frozen=True, slots=True)
class Abandonment:
    """What an abandon command gives up. `applied` False = it is a dry run."""

    things: tuple[GivenUp, ...]
    """A VM, or a host and its VMs."""
    means: tuple[str, ...]
    """The consequences, one line each."""
    left: tuple[str, ...] = ()
    """What the admin must still do, in order."""
    already: bool = False
    """Whether it was given up before, so that nothing changes."""
    applied: bool = False
    only_marked: Original | None = None
    """The state before the night of a VM that only its marker describes, not the journal."""

    @property
    def name(self) -> str:
        return self.things[0].name

    @property
    def deeds(self) -> tuple[object, ...]:
        """Return what is given up, without the time."""
        return tuple((thing.thing, thing.ref, thing.uuid, thing.of) for thing in self.things if not self.already)
