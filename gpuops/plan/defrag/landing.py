"""Landing: on which GPU a host puts a VM that arrives, as far as its documented policy leaves no choice.

Sources: vSphere API, HostGraphicsConfig.sharedPassthruAssignmentPolicy (same-size mode: `performance` the GPU with the
fewest VMs, `consolidation` the one with the most); NVIDIA AI Enterprise docs (mixed-size mode: the least used; the
policy is ignored there and in MIG mode). What breaks ties, and the order in MIG mode, is nowhere said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpuops.model.gpu import AssignmentPolicy, VgpuMode
from gpuops.plan.defrag.ground import Ground
from gpuops.plan.defrag.pieces import CERTAIN, MAYBE, Content, Piece
from gpuops.plan.defrag.table import HostNow


class Basis(StrEnum):
    """Why it is certain on which GPU the VM arrives, or why that does not matter."""

    ONLY = "the only GPU with room"
    POLICY = "assignment policy"
    ALIKE = "one of several that are alike"
    ANY = "any of them: counted on each"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A host with one VM more, and the GPUs it may be on."""

    now: HostNow
    gpus: tuple[int, ...]
    basis: Basis


@dataclass(frozen=True, slots=True)
class _Spot:
    gpus: tuple[int, ...]
    basis: Basis


def leave(ground: Ground, now: HostNow, piece: Piece) -> HostNow | None:
    """The host without the VM; None where it is not known what it leaves behind."""
    if piece.number in now.lost:
        return None
    contents = tuple(
        tuple(seat for seat in content if seat[0] != piece.number)
        if any(seat[0] == piece.number for seat in content)
        else content
        for content in now.contents
    )
    return ground.host_now(now.number, contents, now.free_mib + piece.reserved_mib, now.blurred, now.lost)


def arrive(ground: Ground, now: HostNow, piece: Piece) -> Arrival | None:
    """The host with the VM; None = it may not take it, or not for certain."""
    if piece.memory_mib > now.free_mib:
        return None
    contents, blurred, lost = list(now.contents), now.blurred, now.lost
    touched: list[int] = []
    basis = Basis.ONLY
    for profile in piece.profiles:
        spot = _spot(ground, now.number, contents, profile)
        if spot is None:
            return None
        if spot.basis is Basis.ALIKE:
            # Take the first for the one it is: the others keep their names, but not what is known of who is on them.
            blurred |= set(spot.gpus)
            lost |= {seat[0] for gpu in spot.gpus for seat in contents[gpu]}
        one = spot.gpus if spot.basis is Basis.ANY else spot.gpus[:1]
        sure = MAYBE if spot.basis is Basis.ANY else CERTAIN
        for gpu in one:
            contents[gpu] = (*contents[gpu], (piece.number, profile, sure))
        touched += spot.gpus
        basis = max(basis, spot.basis, key=list(Basis).index)
    after = ground.host_now(now.number, tuple(contents), now.free_mib - piece.memory_mib, blurred, lost)
    if now.blurred & set(touched):
        touched, basis = [*touched, *now.blurred], max(basis, Basis.ALIKE, key=list(Basis).index)
    return Arrival(after, tuple(sorted(set(touched))), basis)


def _spot(ground: Ground, host: int, contents: list[Content], profile: str) -> _Spot | None:
    """Where one vGPU goes. Suspended VMs count for their slots, not for the host's choice: it does not know them."""
    real = [tuple(seat for seat in content if ground.pieces[seat[0]].running) for content in contents]
    slots = [ground.slots(host, gpu, content, profile) for gpu, content in enumerate(contents)]
    if not any(found.at_least for found in slots):
        return None
    open_to_host = {
        gpu: found.at_least > 0
        for gpu, content in enumerate(real)
        if (found := ground.slots(host, gpu, content, profile)).possible
    }
    chosen, by_policy = _chosen(ground, host, real, open_to_host)
    if any(slots[gpu].at_least == 0 and real[gpu] != contents[gpu] for gpu in chosen):
        return None  # a suspended VM might not find its slot again
    if len(chosen) == 1:
        return _Spot(chosen, Basis.ONLY if len(open_to_host) == 1 else Basis.POLICY)
    kinds = {ground.kind_of_gpu(host, gpu, contents[gpu]) for gpu in chosen}
    certain = all(seat[2] == CERTAIN for gpu in chosen for seat in contents[gpu])
    if len(kinds) == 1 and certain and by_policy:
        return _Spot(chosen, Basis.ALIKE)
    return _Spot(chosen, Basis.ANY)


def _chosen(
    ground: Ground, host: int, real: list[Content], open_to_host: dict[int, bool]
) -> tuple[tuple[int, ...], bool]:
    """The GPUs that the host may choose, and whether a documented rule says so. `open_to_host`: surely, or maybe."""
    stand = ground.stands[host]
    told = all(seat[2] == CERTAIN for gpu in open_to_host for seat in real[gpu])
    told = told and not any(stand.unclear[gpu] for gpu in open_to_host)
    by_mode: dict[VgpuMode | None, list[int]] = {}
    for gpu in open_to_host:
        by_mode.setdefault(stand.gpus[gpu].vgpu_mode, []).append(gpu)
    found: list[int] = []
    ruled = told
    for mode, gpus in by_mode.items():
        order = _order(ground, host, mode, real, gpus) if told else None
        ruled = ruled and order is not None
        found += gpus if order is None else _first(order, open_to_host)
    return tuple(sorted(found)), ruled


def _order(
    ground: Ground, host: int, mode: VgpuMode | None, real: list[Content], gpus: Iterable[int]
) -> dict[int, int] | None:
    """By GPU: the lower, the sooner the host tries it; None = nothing says."""
    policy = ground.stands[host].policy
    if mode is VgpuMode.SAME_SIZE and policy is not None:
        sign = -1 if policy is AssignmentPolicy.CONSOLIDATION else 1
        return {gpu: sign * len({seat[0] for seat in real[gpu]}) for gpu in gpus}
    if mode is VgpuMode.MIXED_SIZE:
        return {gpu: _used_mib(ground, real[gpu]) for gpu in gpus}
    if mode is VgpuMode.MULTI_INSTANCE and len({ground.kind_of_gpu(host, gpu, real[gpu]) for gpu in gpus}) == 1:
        return dict.fromkeys(gpus, 0)
    return None


def _first(order: dict[int, int], open_to_host: dict[int, bool]) -> list[int]:
    """Down to the first rank that has surely room: a GPU before it may refuse."""
    found: list[int] = []
    for rank in sorted(set(order.values())):
        there = [gpu for gpu, its in order.items() if its == rank]
        found += there
        if any(open_to_host[gpu] for gpu in there):
            break
    return found


def _used_mib(ground: Ground, content: Content) -> int:
    profiles = (ground.catalog.profile(seat[1]) for seat in content)
    return sum(profile.framebuffer_mib for profile in profiles if profile is not None)
