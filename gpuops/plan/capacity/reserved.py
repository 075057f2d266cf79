"""The room in a cluster, or on a host of none, less what is reserved there for VMs of others (vSphere 9.0).

A reservation is of one profile, and takes the room of others that its GPUs run too. How much of theirs is left at the
least follows from GPUs that are set aside for it: those on which it costs the others least, until it has enough.

Example: 6 slots of 8 GB are reserved, one GPU has 6 free and another 4 beside two that run. Of a profile of half a GPU
2 fit on the first alone, and the reservation has room without it: it is set aside last, and at the least none is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.advise.room import Rooms
from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.plan.capacity.fleet_part import Fit, FleetPart
from gpuops.plan.placement.keep_free import reserved_at, reserved_unknown
from gpuops.plan.placement.wanted import KeptProfile


def less_reserved(part: FleetPart, hosts: Sequence[Host], inventory: Inventory, catalog: Catalog) -> FleetPart:
    """The same part, whose hosts these are, with what is free for others."""
    first = hosts[0]
    unknown = reserved_unknown(first, inventory)
    if unknown is not None:
        doubted = {name: replace(fit, slots=fit.slots.doubted(unknown)) for name, fit in part.fits.items()}
        return replace(part, fits=doubted, notes=(*part.notes, unknown))
    states = [state for host in hosts for state in gpu_states(host, inventory, catalog)]
    rooms = Rooms(catalog)
    for kept in reserved_at(first, inventory, catalog):
        note = f"{kept.reserved} of {kept.profile} reserved, not free"
        fits = {name: _less(fit, name, kept, note, states, rooms) for name, fit in part.fits.items()}
        part = replace(part, fits=fits, notes=(*part.notes, note))
    return part


def _less(fit: Fit, profile: str, kept: KeptProfile, note: str, states: Sequence[GpuState], rooms: Rooms) -> Fit:
    slots = fit.slots
    if profile == kept.profile:
        most = None if slots.at_most is None else max(0, slots.at_most - kept.count)
        left = Slots(max(0, slots.at_least - kept.count), most, note)
    else:
        taken, exact = _taken(profile, kept, states, rooms)
        if not taken:
            return fit
        least = max(0, slots.at_least - taken)
        left = Slots(
            least, max(0, slots.at_most - taken) if exact and slots.at_most is not None else slots.at_most, note
        )
    if left.at_most is None:
        return replace(fit, slots=left)
    one_node, one_host = (each.capped(left.at_most, note) for each in (fit.beside_one_node, fit.on_one_host))
    return Fit(left, one_node, one_host)


def _taken(profile: str, kept: KeptProfile, states: Sequence[GpuState], rooms: Rooms) -> tuple[int, bool]:
    """(how many of the profile what is reserved takes away at the most, whether it takes so many in any case)."""
    both = [rooms.on(state, (profile, kept.profile)) for state in states]
    nothing = Slots(0, 0)
    free = [(on.get(profile, nothing).at_least, on.get(kept.profile, nothing).at_least) for on in both]
    alike = all(own == reserved for own, reserved in free)
    missing = kept.count - sum(reserved for own, reserved in free if not own)
    if missing <= 0:
        return 0, False
    if alike:
        return min(missing, sum(own for own, _ in free)), True
    taken = 0
    for own, reserved in sorted((each for each in free if all(each)), key=lambda each: each[0] / each[1]):
        if missing <= 0:
            break
        taken += own
        missing -= reserved
    return taken, False
