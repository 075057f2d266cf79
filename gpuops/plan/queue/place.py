"""Where VMs that do not exist yet would go, one after another, each in the room that the earlier ones leave.

Order: priority, then those that name their GPUs, then size (GPU memory, memory, vCPUs), then name. Workloads of one
affinity are one unit: placed in turn with its largest, all on one host or none. Where that leaves some without a place,
and the order in which they are listed surely places more GPU memory, that order is the answer. Nothing is ever written:
the answer is a value, and so is the snapshot.

Why one after another and not all at once: it is the rule that `attach` follows, so the answer is what will happen when
the VMs are made in this order. With `optimize` a solver looks at the whole queue (`batch/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.command_line import Option, word
from gpuops.plan.devices.requested import profile_meant, profiles_to_keep
from gpuops.plan.devices.settings import nodes_of, trade_off
from gpuops.plan.placement.keep_free import KeepFreeOption, KeptCount, kept_counts, kept_profiles
from gpuops.plan.placement.suspended_vms import Claim, Return, SuspendedPolicy, later_returns, with_claims
from gpuops.plan.placement.wanted import NOTHING_KEPT, KeepFree, PinPolicy
from gpuops.plan.queue.batch.expected_starts import expecting_starts
from gpuops.plan.queue.batch.place_all import BatchResult, place_all
from gpuops.plan.queue.eligible_hosts import scope_of
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.plan.queue.pinning import steered
from gpuops.plan.queue.start_check import in_turn
from gpuops.plan.queue.suggestions import RoomByMoves
from gpuops.plan.queue.workload_vm import vm_of


@dataclass(frozen=True, slots=True)
class Placements:
    """What became of each workload, in the order in which they were placed."""

    before: Inventory
    answers: tuple[Placed | Refusal, ...]
    claims: tuple[Claim, ...] = ()
    """Suspended VMs whose GPUs are kept for them."""
    doubts: tuple[str, ...] = ()
    """What may not come true although each has its place."""
    bindings: tuple[str, ...] = ()
    """What it costs to bind them to NUMA nodes."""
    optimum: BatchResult | None = None
    """How near to the best this is; None = nobody asked for it."""
    later: tuple[Return, ...] = ()
    """Suspended VMs for which nothing is kept: they come back when all of this is gone."""

    keep: KeepFree = NOTHING_KEPT
    """What every place had to leave free."""
    kept: tuple[KeptCount, ...] = ()
    """What they leave of it, cluster by cluster."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """About all of them together."""
        return (*self.doubts, *self.bindings)

    @property
    def placed(self) -> tuple[Placed, ...]:
        return tuple(answer for answer in self.answers if isinstance(answer, Placed))

    @property
    def refused(self) -> tuple[Refusal, ...]:
        return tuple(answer for answer in self.answers if isinstance(answer, Refusal))

    @property
    def exit_code(self) -> int:
        """3 when one of them has no place, for whatever reason."""
        return 3 if self.refused else 0


@dataclass(frozen=True, slots=True)
class Place:
    """What is asked: the workloads, and whether every host and GPU looked at is to be told."""

    workloads: tuple[Workload, ...]
    pin: Annotated[
        PinPolicy,
        Option("auto: bind vGPUs to their GPUs where the order of power-on or --numa required depends on it."),
    ] = PinPolicy.AUTO
    suspended: Annotated[
        SuspendedPolicy,
        Option("claim: the GPUs of suspended VMs are kept for their return. ignore: they are free."),
    ] = SuspendedPolicy.CLAIM
    keep_free: KeepFreeOption = ()
    optimize: Annotated[bool, Option("All at once, by a solver; tells how much more is possible.")] = False
    explain: Annotated[bool, Option("Show every host and GPU looked at, and why.")] = False

    def __post_init__(self) -> None:
        """Results are told by name, so each is there once. Raises UsageError."""
        object.__setattr__(self, "pin", word(PinPolicy, self.pin, "pin"))
        object.__setattr__(self, "suspended", word(SuspendedPolicy, self.suspended, "suspended"))
        object.__setattr__(self, "keep_free", tuple(self.keep_free))
        kept_profiles(self.keep_free)
        names = Counter(workload.name for workload in self.workloads)
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            raise UsageError(f"the request {twice[0]!r} is there twice", hint="give each request its own name")

    @property
    def needs_tags(self) -> bool:
        """Whether a workload asks for hosts by their tags, which the bulk read leaves out."""
        return any(workload.tag for workload in self.workloads)

    @property
    def until(self) -> datetime | None:
        """When all of the workloads are gone; None = of one nobody knows."""
        ends = [workload.until for workload in self.workloads]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Refs of the hosts whose QueryConfigTarget the answer needs: those a device group may be on."""
        grouped = (workload for workload in self.workloads if workload.device_group is not None)
        return sorted({host.ref for workload in grouped for host in scope_of(workload).hosts(inventory)})

    def check_profiles(self, inventory: Inventory, catalog: Catalog) -> None:
        """Raises ProfileUnknown or ProfileAmbiguous for a profile of a request, naming all requests with such names."""
        errors: list[tuple[Workload, UsageError]] = []
        for workload in self.workloads:
            for vgpus in workload.vgpus:
                try:
                    profile_meant(vgpus.profile, vm_of(workload), None, inventory, catalog)
                except UsageError as error:
                    errors.append((workload, error))
        if not errors:
            return
        first = errors[0][1]
        if len(self.workloads) == 1:
            raise first
        raise type(first)(
            "; ".join(f"request {workload.name}: {error.message}" for workload, error in errors), hint=first.hint
        )

    def placements(self, inventory: Inventory, catalog: Catalog) -> Placements:
        """A place for each of them on this snapshot, or every reason why there is none.

        Raises ProfileUnknown for one that is to be kept free and is none.
        """
        keep = KeepFree(profiles_to_keep(self.keep_free, inventory, catalog))
        claim = self.suspended is SuspendedPolicy.CLAIM
        later, unclear = later_returns(inventory, self.until) if claim else ((), ())
        lent = {each.vm.ref for each in later}
        world, waiting = with_claims(inventory, catalog, lent) if claim else (inventory, ())
        queue = Queue(world, catalog, self.explain, self.pin, keep_free=keep)
        optimum = None
        if self.optimize:
            queue, optimum = place_all(queue, self.workloads)
        else:
            queue = queue.with_best(self.workloads)
        placed = tuple(answer for answer in queue.answers if isinstance(answer, Placed))
        seen = expecting_starts(inventory, world) if optimum is not None and optimum.expects_starts else inventory
        known = {each.workload.name: each for each in steered(placed, waiting, self.pin, seen, catalog)}
        room = RoomByMoves(queue.inventory, inventory)
        answers = tuple(
            replace(answer, moves=room.after_moves(queue.trial(answer.workload)))
            if isinstance(answer, Refusal) and answer.workload.affinity is None
            else known.get(answer.workload.name, answer)
            for answer in queue.answers
        )
        doubts = (*unclear, *in_turn(tuple(known.values()), waiting, seen, catalog))
        bindings = tuple(_bound(known.values()))
        kept = tuple(kept_counts(keep, world, queue.inventory, catalog))
        return Placements(inventory, answers, waiting, doubts, bindings, optimum, later, keep, kept)


def _bound(placed: Iterable[Placed]) -> Iterator[str]:
    """What binding VMs to NUMA nodes costs, once for all of them."""
    bound = [each for each in placed if each.workload.numa is NumaPolicy.REQUIRED and each.placement.bound_to]
    if len(bound) == 1:
        yield trade_off([bound[0].workload.name], nodes_of(bound[0].placement))
    elif bound:
        yield trade_off([each.workload.name for each in bound], "their NUMA nodes")
