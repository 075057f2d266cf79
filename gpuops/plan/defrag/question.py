"""Question: which moves free the most slots or whole GPUs, the fewest that do, and who cannot move. It only plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.errors import UsageError
from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.plan.asked import offered_profile
from gpuops.plan.claims import with_claims
from gpuops.plan.defrag.answer import Defragmentation, Stay, answer
from gpuops.plan.defrag.frontier import Area, explored, together
from gpuops.plan.defrag.goal import Goal
from gpuops.plan.defrag.ground import Ground, Stand, serves_vgpus
from gpuops.plan.defrag.pieces import Piece, contents_of, gpus_of, pieces_of
from gpuops.plan.defrag.standing import OPT_OUT, Standing, Way, standings
from gpuops.plan.defrag.table import Table
from gpuops.plan.defrag.targets import Targets
from gpuops.plan.placement.nodes import surely_unreserved
from gpuops.plan.scope import Scope

UNLIMITED: Final = 1_000_000
_NOBODY: Final = Vm("", "")


@dataclass(frozen=True, slots=True)
class Defrag:
    """What is to be freed, where, and at what price."""

    profile: str | None = None
    """Slots of this vGPU profile; None = whole GPUs, that nothing runs on."""
    scope: Scope = field(default_factory=Scope)
    """Only these hosts take part: VMs leave no other host, and go to no other."""
    max_moves: int | None = None
    powered_off: bool = False
    """Also VMs that cannot be moved while they run: powered off for it."""

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.max_moves is not None and self.max_moves < 0:
            raise UsageError(f"{self.max_moves} moves: must be 0 or more", hint="leave --max-moves out for no limit")

    def planned(self, inventory: Inventory, catalog: Catalog) -> Defragmentation:
        """The moves, what is free before and after them, and why the other VMs stay.

        Raises HostNotFound, UsageError for a cluster that is not there, and Refused for a profile that is none.
        """
        self.scope.check(inventory)
        profile = None if self.profile is None else offered_profile(self.profile, inventory)
        world, _ = with_claims(inventory, catalog)
        ways = frozenset({Way.VMOTION, Way.POWERED_OFF} if self.powered_off else {Way.VMOTION})
        limit = UNLIMITED if self.max_moves is None else self.max_moves
        areas: list[Area] = []
        stays: list[Stay] = []
        cold: set[str] = set()
        for hosts in _by_cluster(self.scope.hosts(inventory), inventory):
            found = standings(inventory, hosts, catalog, (OPT_OUT,))
            targets = Targets(hosts, inventory.clusters.get(hosts[0].cluster or ""), inventory)
            states = {host.ref: gpu_states(world.hosts[host.ref], world, catalog) for host in hosts}
            seats = gpus_of(state for each in states.values() for state in each)
            pieces = pieces_of(found, seats, targets, ways)
            stays += _stays(found, pieces, targets, ways)
            ground = Ground([_stand(host, states[host.ref], profile) for host in hosts], pieces, Goal(profile), catalog)
            areas.append(explored(ground, _table(ground, states, world), limit))
            cold |= {each.vm.ref for each in found if each.way is Way.POWERED_OFF}
        lines = together(areas, limit)
        return answer(inventory, catalog, profile, areas, lines, tuple(stays), frozenset(cold), limit)


def _by_cluster(hosts: Sequence[Host], inventory: Inventory) -> list[list[Host]]:
    """The hosts of each cluster, by its name; those of none last."""
    found: dict[str | None, list[Host]] = {}
    for host in hosts:
        found.setdefault(host.cluster if host.cluster in inventory.clusters else None, []).append(host)
    names = {ref: inventory.clusters[ref].name if ref else "" for ref in found}
    return [found[ref] for ref in sorted(found, key=lambda ref: (ref is None, names[ref], ref or ""))]


def _stand(host: Host, states: Sequence[GpuState], profile: str | None) -> Stand:
    out = "" if host.connected is True else "its host is not connected, or does not tell"
    out = out or ("" if host.in_maintenance is False else "its host is in maintenance mode, or does not tell")
    unclear = tuple(out or state.unclear for state in states)
    offered = profile is None or host.offers(profile) is not None
    counted = (offered and not why and serves_vgpus(state.gpu) for state, why in zip(states, unclear, strict=True))
    return Stand(host, tuple(state.gpu for state in states), unclear, tuple(counted))


def _table(ground: Ground, states: Mapping[str, Sequence[GpuState]], world: Inventory) -> Table:
    numbers = {piece.vm.ref: piece.number for piece in ground.pieces}
    return tuple(
        ground.host_now(
            number,
            contents_of(states[stand.host.ref], numbers),
            surely_unreserved(world.hosts[stand.host.ref], _NOBODY, world) or 0,
        )
        for number, stand in enumerate(ground.stands)
    )


def _stays(
    found: Sequence[Standing], pieces: Sequence[Piece], targets: Targets, ways: frozenset[Way]
) -> Iterator[Stay]:
    for each, piece in zip(found, pieces, strict=True):
        if each.way not in ways:
            yield Stay(each.vm, each.way, each.reasons)
        elif not piece.movable:
            _, refusals = targets.of(each.vm, running=each.way is Way.VMOTION)
            yield Stay(each.vm, Way.NOT, tuple(map(str, refusals)) or ("no other host takes part",))
