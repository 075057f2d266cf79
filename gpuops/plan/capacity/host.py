"""Host: the room on one host, NUMA node by NUMA node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuops.advise.capacity import Slots, total
from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.advise.room import Rooms
from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaNode
from gpuops.model.profile_name import parse
from gpuops.plan.capacity.bars import Bar, bars, behind
from gpuops.plan.capacity.beside import UNKNOWN, Beside, beside
from gpuops.plan.capacity.in_one_vm import InOneVm
from gpuops.plan.capacity.place import Fit, Fits, Largest, Level, Place, fits_of, largest_of
from gpuops.plan.capacity.whole import Holding, rooms


@dataclass(frozen=True, slots=True)
class _Here:
    """What the nodes of one host share."""

    host: Host
    bars: tuple[Bar, ...]
    holding: Holding


class HostRoom:
    """The question to hosts. `offered` are the profiles to answer for where a host does not tell its own.

    Most nodes of a fleet are like another one, so their figures are worked out once. What is kept is found again by
    the identity of what it was made of, which is kept too.
    """

    def __init__(self, catalog: Catalog, offered: tuple[str, ...], profile: str | None = None) -> None:
        self._catalog = catalog
        self._offered = offered
        self._profile = profile
        self._rooms = Rooms(catalog)
        self._in_one_vm = InOneVm(catalog)
        self._known: dict[tuple[object, ...], Fits] = {}
        self._largest: dict[int, Largest | None] = {}

    def of(self, host: Host, inventory: Inventory) -> Place:
        """The room on one host as this snapshot shows it."""
        here = _Here(host, tuple(bars(host, inventory)), Holding(host, inventory))
        states = gpu_states(host, inventory, self._catalog)
        nodes = tuple(
            self._node(here, "NUMA node unknown", there, UNKNOWN)
            if node is None
            else self._node(here, f"NUMA node {node.id}", there, beside(node, host, inventory))
            for node, there in _by_node(host, states)
        )
        return Place(
            level=Level.HOST,
            name=host.name,
            gpus=len(states),
            fits=self._host_fits([node.fits for node in nodes], host),
            devices=rooms([state.gpu for state in states], here.holding, here.bars),
            largest=largest_of(node.largest for node in nodes),
            parts=nodes,
            notes=tuple(bar.because for bar in here.bars),
        )

    def _node(self, here: _Here, name: str, states: Sequence[GpuState], local: Beside) -> Place:
        profiles = self._profiles(here.host)
        fits = self._node_fits([self._rooms.on(state, profiles) for state in states], here, local)
        return Place(
            level=Level.NODE,
            name=name,
            gpus=len(states),
            fits=fits,
            devices=rooms([state.gpu for state in states], here.holding, here.bars),
            largest=self._largest_in(fits, f"{here.host.name} {name}", local),
            beside=local,
        )

    def _profiles(self, host: Host) -> tuple[str, ...]:
        names = self._offered if host.profiles is None else tuple(offer.name for offer in host.profiles)
        return names if self._profile is None else tuple(name for name in names if name == self._profile)

    def _node_fits(self, free: Sequence[Mapping[str, Slots]], here: _Here, local: Beside) -> Fits:
        key = (*map(id, free), here.host.version, here.bars, local.possible, local.certain)
        if key not in self._known:
            found: dict[str, list[Slots]] = {}
            for gpu in free:
                for profile, slots in gpu.items():
                    found.setdefault(profile, []).append(slots)
            fits = {}
            for profile in sorted(found):
                slots = behind(here.bars, total(found[profile]))
                one = self._in_one_vm.of(slots, profile, here.host)
                fits[profile] = Fit(slots, _fed(one, local), one)
            self._known[key] = fits
        return self._known[key]

    def _host_fits(self, nodes: Sequence[Fits], host: Host) -> Fits:
        key = (*map(id, nodes), host.version)
        if key not in self._known:
            self._known[key] = {
                profile: replace(fit, on_one_host=self._in_one_vm.of(fit.slots, profile, host))
                for profile, fit in fits_of(nodes).items()
            }
        return self._known[key]

    def _largest_in(self, fits: Fits, where: str, local: Beside) -> Largest | None:
        if id(fits) not in self._largest:
            self._largest[id(fits)] = largest_of(_candidate(profile, fit) for profile, fit in fits.items())
        found = self._largest[id(fits)]
        return None if found is None else replace(found, where=where, beside=local)


def _candidate(profile: str, fit: Fit) -> Largest | None:
    parts = parse(profile)
    if parts is None or not fit.beside_one_node.possible:
        return None
    return Largest(profile, parts.framebuffer_mib, fit.beside_one_node, "", UNKNOWN)


def _fed(slots: Slots, local: Beside) -> Slots:
    """What of it a VM can be given with cores and memory of the same node."""
    if not local.possible:
        return Slots(0, 0, "no cores or no memory left beside the GPUs")
    if not local.certain:
        return slots.doubted("whether cores and memory are left beside the GPUs is not known")
    return slots


def _by_node(host: Host, states: Sequence[GpuState]) -> Iterator[tuple[NumaNode | None, list[GpuState]]]:
    """The nodes that have GPUs, each with its own; last, under None, the GPUs whose node is not known."""
    for node in sorted(host.numa_nodes, key=lambda node: node.id):
        there = [state for state in states if state.gpu.numa_node == node.id]
        if there:
            yield node, there
    known = {node.id for node in host.numa_nodes}
    elsewhere = [state for state in states if state.gpu.numa_node not in known]
    if elsewhere:
        yield None, elsewhere
