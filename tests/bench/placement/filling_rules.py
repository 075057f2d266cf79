"""The rules that `place` is measured beside: each ranks the GPUs that may have room, and its host admits or refuses.

A rule asks for one GPU after another, in its order, until the host admits the VM; several vGPUs of one VM go to one
host, each where the rule wants it then. Every rule knows of a GPU what `place` knows: which vGPUs run on it, and where
they start if the hosts tell. The shares in which profiles are asked for are known to those whose authors let them.

Reconstructed from the abstracts, for the papers' code is not public: GRMU (arXiv 2502.01909) keeps GPUs for whole-GPU
VMs and packs the others by first fit, its migrations left out; Zambianco et al. (arXiv 2511.18906) choose the GPU on
which the fewest starts of all profiles become unusable beside the memory that stays free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import GpuState, Tenant, gpu_states, room_for, with_expected
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.sim.state.gpu_admission import NotAdmitted
from tests.bench.placement.filling_fleet import GPUS, HOSTS, FillingFleet, FleetKind
from tests.plan import snapshots
from tests.plan.snapshots import catalog

Rank = Callable[["Site", GpuState, str], float]


@dataclass
class Site:
    """What a rule knows of the fleet: its kind, the shares of the profiles, and the room that states leave."""

    kind: FleetKind
    shares: dict[str, float]
    number: int = 0
    """The number of the GPU that is asked about, in the fixed order of first fit."""
    _rooms: dict[tuple[object, ...], dict[str, Slots]] = field(default_factory=dict)

    def rooms(self, state: GpuState) -> dict[str, Slots]:
        """Room for each profile of the mix."""
        tenants = tuple(sorted((tenant.profile, str(tenant.start)) for tenant in state.tenants))
        key = (state.gpu.vgpu_mode, state.gpu.vgpus is None, tenants)
        if key not in self._rooms:
            self._rooms[key] = {profile: room_for(state, profile, catalog()) for profile in self.shares}
        return self._rooms[key]

    def free_mib(self, state: GpuState) -> int:
        memory = state.gpu.memory_mib or 0
        return memory - sum(self.kind.size_mib(tenant.profile) for tenant in state.tenants)


def first_fit(site: Site, state: GpuState, profile: str) -> float:
    return 0.0


def best_fit(site: Site, state: GpuState, profile: str) -> float:
    return site.free_mib(state)


def fgd(site: Site, state: GpuState, profile: str) -> float:
    """Fragmentation that the vGPU adds: free memory that the mean request cannot use (Weng et al., USENIX ATC 2023)."""
    after = with_expected(state, Tenant("", "", profile), catalog())
    return _fragments(site, after) - _fragments(site, state)


def _fragments(site: Site, state: GpuState) -> float:
    free, rooms = site.free_mib(state), site.rooms(state)
    return sum(share * max(0, free - rooms[p].at_least * site.kind.size_mib(p)) for p, share in site.shares.items())


def fgd_fullest(site: Site, state: GpuState, profile: str) -> float:
    """FGD; of equal GPUs the one with the least free memory."""
    return round(fgd(site, state, profile), 3) + 1e-8 * site.free_mib(state)


def least_unusable_starts(site: Site, state: GpuState, profile: str) -> float:
    """Zambianco et al.: starts of profiles that would fit by memory and cannot be used."""
    after = with_expected(state, Tenant("", "", profile), catalog())
    return _unusable(site, after) - _unusable(site, state)


def _unusable(site: Site, state: GpuState) -> float:
    free, rooms = site.free_mib(state), site.rooms(state)
    sizes = {profile: site.kind.size_mib(profile) for profile in site.shares}
    return sum(max(0, free // size - rooms[profile].at_least) * size for profile, size in sizes.items() if size <= free)


def grmu(site: Site, state: GpuState, profile: str) -> float:
    """GRMU's baskets: so many GPUs as whole-GPU VMs are expected to fill are the last for any other VM."""
    heavy = round(HOSTS * GPUS * site.kind.whole_memory_share)
    is_kept_free = site.number < heavy
    return float(is_kept_free) if profile != site.kind.name_of(site.kind.whole) else float(not is_kept_free)


RULES: Final[dict[str, Rank]] = {
    "first fit": first_fit,
    "best fit": best_fit,
    "FGD": fgd,
    "FGD, ties to the fullest": fgd_fullest,
    "GRMU, reconstructed": grmu,
    "Zambianco, reconstructed": least_unusable_starts,
}


def fill(rank: Rank, fleet: FillingFleet, requests: Sequence[tuple[str, int]]) -> int:
    """Starts what the hosts admit, as the rule asks for it; the power-ons that were refused."""
    kind = fleet.kind
    site = Site(kind, kind.shares())
    refused = 0
    for profile, count in requests:
        vm = snapshots.vm(0, "vm", "1", *[f"vgpu {profile}"] * count)
        for host, pins in _places(rank, site, fleet, profile, count):
            if not isinstance(fleet.power_on(vm, host.ref, pins), NotAdmitted):
                break
            refused += 1
    return refused


def _places(
    rank: Rank, site: Site, fleet: FillingFleet, profile: str, count: int
) -> Iterator[tuple[Host, dict[int, PciAddress]]]:
    """Every host, or GPU of a host, that may have room, with the GPU of each vGPU; the best first."""
    ranked: list[tuple[float, int, int, Host, dict[int, PciAddress]]] = []
    for number, host in enumerate(fleet.seen.hosts.values()):
        states = {state.gpu.address: state for state in gpu_states(host, fleet.seen, catalog())}
        if count == 1:
            for at, (address, state) in enumerate(states.items()):
                site.number = number * GPUS + at
                if site.rooms(state)[profile].possible:
                    ranked.append((rank(site, state, profile), number, at, host, {0: address}))
            continue
        pins: dict[int, PciAddress] = {}
        total = 0.0
        for ordinal in range(count):
            able = [(rank(site, s, profile), a) for a, s in states.items() if site.rooms(s)[profile].possible]
            if not able:
                break
            cost, address = min(able)
            total += cost
            pins[ordinal] = address
            states[address] = with_expected(states[address], Tenant("", "", profile), catalog())
        else:
            ranked.append((total, number, 0, host, pins))
    for *_, host, pins in sorted(ranked, key=lambda ranked_place: ranked_place[:3]):
        yield host, pins
