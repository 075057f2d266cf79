"""Hosts and VMs that an admin abandons by name: what that means, and which of them are not back yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpuops.model.nights.journal import GivenUp, Thing
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm

REMEMBERED: Final = timedelta(days=30)
"""So long one that is gone from vCenter is named; what is there is named until it is back."""


NAMED_UNTIL_BACK: Final = "gpuops doctor, change status and rotate status name it until it is back"


@dataclass(frozen=True, slots=True)
class Missed:
    """One that is not back, for people."""

    given: GivenUp
    now: str
    """How it is now."""
    move: str
    """What brings it back."""

    @property
    def since(self) -> str:
        return f"was given up at {format_zoned_minute(self.given.at)} ({self.given.of}); {self.now}"


def host_now(ref: str, uuid: str | None, inventory: Inventory) -> Host | None:
    """Return the host that had this id and this hardware uuid, under whatever id it has now; None = it is gone.

    Without a uuid on either side the id decides. Some servers share one uuid by their maker's mistake: then the id
    decides among them.
    """
    same_id = inventory.hosts.get(ref)
    if uuid is None or (same_id is not None and same_id.uuid in (uuid, None)):
        return same_id
    same = [host for host in inventory.hosts.values() if host.uuid == uuid]
    return same[0] if len(same) == 1 else None


def vm_now(ref: str, uuid: str | None, inventory: Inventory) -> Vm | None:
    """Return the VM that had this id and this instance uuid, under whatever id it has now; None = it is gone."""
    same_id = inventory.vms.get(ref)
    if uuid is None or (same_id is not None and same_id.instance_uuid in (uuid, None)):
        return same_id
    same = [vm for vm in inventory.vms.values() if vm.instance_uuid == uuid]
    return same[0] if len(same) == 1 else None


def is_back(abandoned: GivenUp, inventory: Inventory) -> bool:
    """Return whether it serves again: a host that is connected and in no maintenance mode, a VM that runs as it did."""
    if abandoned.thing is Thing.HOST:
        host = host_now(abandoned.ref, abandoned.uuid, inventory)
        return host is not None and host.connected is True and host.in_maintenance is False
    vm = vm_now(abandoned.ref, abandoned.uuid, inventory)
    if vm is None or vm.power is None or vm.connected is False:
        return False
    return (vm.power is PowerState.ON) is abandoned.runs


def missed(given_up: Iterable[GivenUp], inventory: Inventory) -> tuple[Missed, ...]:
    """Return those that are to be named: not back, and not gone from vCenter for so long that they will not come."""
    return tuple(
        Missed(abandoned, state_of(abandoned, inventory), move_for(abandoned, inventory))
        for abandoned in given_up
        if not is_back(abandoned, inventory)
        and (_is_there(abandoned, inventory) or inventory.taken_at - abandoned.at < REMEMBERED)
    )


def state_of(abandoned: GivenUp, inventory: Inventory) -> str:
    """Return how it is now."""
    if abandoned.thing is Thing.HOST:
        host = host_now(abandoned.ref, abandoned.uuid, inventory)
        if host is None:
            return "it is gone from vCenter"
        return host_state(host)
    vm = vm_now(abandoned.ref, abandoned.uuid, inventory)
    if vm is None:
        return "it is gone from vCenter"
    if vm.connected is False or vm.power is None:
        return "it is not connected, its state cannot be read"
    return {PowerState.ON: "it runs", PowerState.OFF: "it is powered off"}.get(vm.power, "it is suspended")


def host_state(host: Host) -> str:
    """Return what keeps a host from serving; a line of plain words."""
    if host.connected is not True:
        return "it is not connected"
    return "it is in maintenance mode" if host.in_maintenance is not False else "it serves VMs"


def move_for(abandoned: GivenUp, inventory: Inventory) -> str:
    """Return what a person does to have it back."""
    if abandoned.thing is Thing.HOST:
        host = host_now(abandoned.ref, abandoned.uuid, inventory)
        if host is None:
            return "add the host to vCenter again, or leave it away"
        if host.connected is not True:
            return "start the host and reconnect it in vCenter, then take it out of maintenance mode"
        return "take it out of maintenance mode, when the work is done"
    if vm_now(abandoned.ref, abandoned.uuid, inventory) is None:
        return "nothing brings a VM back that was deleted"
    return "power it on in vCenter" if abandoned.runs else "shut it down in vCenter"


def _is_there(abandoned: GivenUp, inventory: Inventory) -> bool:
    find_now = host_now if abandoned.thing is Thing.HOST else vm_now
    return find_now(abandoned.ref, abandoned.uuid, inventory) is not None


@dataclass(frozen=True, slots=True)
class Abandonment:
    """What is given up, or was. `applied` False = nothing is written yet."""

    things: tuple[GivenUp, ...]
    """The host and the VMs that it takes along, or the VM."""
    means: tuple[str, ...]
    """What that means, a line each."""
    left: tuple[str, ...] = ()
    """What remains to be done, in order."""
    already: bool = False
    """It was given up before: nothing is to be done."""
    applied: bool = False

    @property
    def name(self) -> str:
        return self.things[0].name

    @property
    def deeds(self) -> tuple[object, ...]:
        """Return what is given up, without the time."""
        return tuple((thing.thing, thing.ref, thing.uuid, thing.of) for thing in self.things)
