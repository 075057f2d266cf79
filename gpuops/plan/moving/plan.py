"""The defragmentation request: which moves free the most slots or whole GPUs, the fewest that do, and who cannot move.

`gpuops defrag` (`cli/vms/defrag.py`, `api/vms.py`, `execute/change/moves.py`) and `plan/queue/suggestions.py` call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.command_line import Names, Option, word
from gpuops.plan.core.scope import Scope
from gpuops.plan.devices.requested import offered_profile
from gpuops.plan.moving.cluster import (
    ClusterHost,
    ClusterModel,
    ClusterState,
    FreeingGoal,
    SearchVm,
    gpu_contents,
    gpus_per_vm,
    make_search_vms,
)
from gpuops.plan.moving.frontier import ClusterPlans, combine_clusters, explore_cluster
from gpuops.plan.moving.movability import OPT_OUT, Movability, MoveMethod, TargetHosts, judge_all
from gpuops.plan.moving.result import Defragmentation, StayingVm, describe_plan
from gpuops.plan.placement.numa_nodes import surely_unreserved_mib
from gpuops.plan.placement.suspended_vms import with_claims
from gpuops.plan.placement.vm_demand import PinPolicy

UNLIMITED: Final = 1_000_000
_NO_VM: Final = Vm("", "")
NONE_KEPT: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Defrag:
    """A request: what is to be freed, where, and with how many moves."""

    profile: Annotated[str | None, Option("Free slots of this vGPU profile: a40-24q.", "NAME", Names.PROFILES)] = None
    """None = whole GPUs, that nothing runs on."""
    max_moves: Annotated[
        int | None, Option("No more moves than these; default: all that free something.", "N", least=0)
    ] = None
    powered_off: Annotated[
        bool, Option("Also move VMs that cannot move while they run: each is powered off for it.")
    ] = False
    pin: Annotated[PinPolicy, Option("auto: with --powered-off, bind a vGPU to one GPU where that frees more.")] = (
        PinPolicy.AUTO
    )
    cluster: Annotated[str | None, Option("Only hosts of this cluster.", "NAME", Names.CLUSTERS)] = None
    host: Annotated[
        str | None, Option("Only hosts named so: esx-0*. No VM goes elsewhere.", "PATTERN", Names.HOSTS)
    ] = None

    def __post_init__(self) -> None:
        """Text becomes a word. Raises UsageError."""
        # Frozen for everybody else: a request is compared and kept, and must not change after this.
        object.__setattr__(self, "pin", word(PinPolicy, self.pin, "pin"))
        if self.max_moves is not None and self.max_moves < 0:
            raise UsageError(f"{self.max_moves} moves: must be 0 or more", hint="leave --max-moves out for no limit")

    @property
    def scope(self) -> Scope:
        """Which hosts take part: VMs leave no other host, and go to no other."""
        return Scope(self.cluster, self.host)

    def planned(self, inventory: Inventory, catalog: Catalog, kept: Mapping[str, str] = NONE_KEPT) -> Defragmentation:
        """The moves, what is free before and after them, and why the other VMs stay.

        `kept`: VM ref -> why it is left where it is, beside what the snapshot itself says against its moving.

        Raises HostNotFound, UsageError for a cluster that is not there, ProfileUnknown, and Refused for a
        profile that no host offers.
        """
        # 1. Slots that suspended VMs need for their return count as taken.
        self.scope.check(inventory)
        profile = None if self.profile is None else offered_profile(self.profile, inventory, catalog)
        world, _ = with_claims(inventory, catalog)
        ways = frozenset({MoveMethod.VMOTION, MoveMethod.POWERED_OFF} if self.powered_off else {MoveMethod.VMOTION})
        limit = UNLIMITED if self.max_moves is None else self.max_moves
        all_plans: list[ClusterPlans] = []
        stays: list[StayingVm] = []
        powered_off: set[str] = set()
        for hosts in _by_cluster(self.scope.hosts(inventory), inventory):
            # 2. Cluster by cluster: neither CPU features nor networks of hosts are read, and a cluster is where they
            # are
            #    alike. Who may move, and to which hosts.
            movabilities = judge_all(inventory, hosts, catalog, (OPT_OUT,), kept)
            targets = TargetHosts(hosts, inventory.clusters.get(hosts[0].cluster or ""), inventory)
            states = {host.ref: gpu_states(world.hosts[host.ref], world, catalog) for host in hosts}
            seats = gpus_per_vm(state for each in states.values() for state in each)
            search_vms = make_search_vms(movabilities, seats, targets, ways, self.pin)
            stays += _staying_vms(movabilities, search_vms, targets, ways)
            # 3. The best plans for each number of moves.
            model = ClusterModel(
                [_cluster_host(host, states[host.ref], profile) for host in hosts],
                search_vms,
                FreeingGoal(profile),
                catalog,
            )
            all_plans.append(explore_cluster(model, _first_state(model, states, world), limit))
            powered_off |= {each.vm.ref for each in movabilities if each.way is MoveMethod.POWERED_OFF}
        # 4. One plan for each cluster within the limit, then names, and the check of every move by the exact rules.
        sequences = combine_clusters(all_plans, limit)
        return describe_plan(
            inventory, catalog, profile, all_plans, sequences, tuple(stays), frozenset(powered_off), limit
        )


def _by_cluster(hosts: Sequence[Host], inventory: Inventory) -> list[list[Host]]:
    """The hosts of each cluster by the name of the cluster; hosts of no cluster last."""
    hosts_of: dict[str | None, list[Host]] = {}
    for host in hosts:
        hosts_of.setdefault(host.cluster if host.cluster in inventory.clusters else None, []).append(host)
    names = {ref: inventory.clusters[ref].name if ref else "" for ref in hosts_of}
    return [hosts_of[ref] for ref in sorted(hosts_of, key=lambda ref: (ref is None, names[ref], ref or ""))]


def _cluster_host(host: Host, states: Sequence[GpuState], profile: str | None) -> ClusterHost:
    out = "" if host.connected is True else "its host is not connected, or does not tell"
    out = out or ("" if host.in_maintenance is False else "its host is in maintenance mode, or does not tell")
    unclear = tuple(out or state.unclear for state in states)
    offered = profile is None or host.offers(profile) is not None
    counted = (offered and not why and state.gpu.serves_vgpus for state, why in zip(states, unclear, strict=True))
    return ClusterHost(host, tuple(state.gpu for state in states), unclear, tuple(counted))


def _first_state(model: ClusterModel, states: Mapping[str, Sequence[GpuState]], world: Inventory) -> ClusterState:
    numbers = {search_vm.vm.ref: search_vm.number for search_vm in model.search_vms}
    return tuple(
        model.host_state(
            number,
            gpu_contents(states[cluster_host.host.ref], numbers),
            surely_unreserved_mib(world.hosts[cluster_host.host.ref], _NO_VM, world) or 0,
        )
        for number, cluster_host in enumerate(model.cluster_hosts)
    )


def _staying_vms(
    movabilities: Sequence[Movability],
    search_vms: Sequence[SearchVm],
    targets: TargetHosts,
    ways: frozenset[MoveMethod],
) -> Iterator[StayingVm]:
    for each, search_vm in zip(movabilities, search_vms, strict=True):
        if each.way not in ways:
            yield StayingVm(each.vm, each.way, each.reasons)
        elif not search_vm.movable:
            _, refusals = targets.of(each.vm, running=each.way is MoveMethod.VMOTION)
            yield StayingVm(each.vm, MoveMethod.NOT, tuple(map(str, refusals)) or ("no other host takes part",))
