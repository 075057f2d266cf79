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

from gpuops.errors import UsageError, report_exit_code
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
from gpuops.plan.queue.pinning import steer
from gpuops.plan.queue.start_check import in_turn
from gpuops.plan.queue.suggestions import RoomByMoves
from gpuops.plan.queue.workload_vm import vm_of


@dataclass(frozen=True, slots=True)
class Placements:
    """The answer for each workload, in the order in which they were placed."""

    before: Inventory
    answers: tuple[Placed | Refusal, ...]
    claims: tuple[Claim, ...] = ()
    """Suspended VMs whose GPUs are kept for them."""
    doubts: tuple[str, ...] = ()
    """What may go wrong although each workload has its place."""
    bindings: tuple[str, ...] = ()
    """The cost of binding them to NUMA nodes."""
    optimum: BatchResult | None = None
    """How close to the best this is; None unless `--optimize` was given."""
    later: tuple[Return, ...] = ()
    """Suspended VMs for which nothing is kept: they come back after all these workloads have ended."""

    keep: KeepFree = NOTHING_KEPT
    """What every place had to leave free."""
    kept: tuple[KeptCount, ...] = ()
    """How much of it they leave free, by cluster."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about all of them together."""
        return (*self.doubts, *self.bindings)

    @property
    def placed(self) -> tuple[Placed, ...]:
        return tuple(answer for answer in self.answers if isinstance(answer, Placed))

    @property
    def refused(self) -> tuple[Refusal, ...]:
        return tuple(answer for answer in self.answers if isinstance(answer, Refusal))

    @property
    def exit_code(self) -> int:
        """3 if a workload has no place, else 0."""
        return report_exit_code(refused=self.refused)


@dataclass(frozen=True, slots=True)
class Place:
    """The request of `gpuops place`."""

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
        """Require unique names, by which results are shown. Raises UsageError."""
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
        """When all workloads have ended; None if the end of one is unknown."""
        ends = [workload.until for workload in self.workloads]
        known_ends = [end for end in ends if end is not None]
        return max(known_ends) if known_ends and len(known_ends) == len(ends) else None

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
        """Return a place for each workload in this snapshot, or every reason why it has no place.

        Raises ProfileUnknown if `--keep-free` names an unknown profile.
        """
        keep = KeepFree(profiles_to_keep(self.keep_free, inventory, catalog))
        claim = self.suspended is SuspendedPolicy.CLAIM
        later, unclear = later_returns(inventory, self.until) if claim else ((), ())
        lent = {late_return.vm.ref for late_return in later}
        world, waiting = with_claims(inventory, catalog, lent) if claim else (inventory, ())
        queue = Queue(world, catalog, self.explain, self.pin, keep_free=keep)
        optimum = None
        if self.optimize:
            queue, optimum = place_all(queue, self.workloads)
        else:
            queue = queue.with_best(self.workloads)
        placed = tuple(answer for answer in queue.answers if isinstance(answer, Placed))
        snapshot = expecting_starts(inventory, world) if optimum is not None and optimum.expects_starts else inventory
        placed_by_name = {
            placed_vm.workload.name: placed_vm for placed_vm in steer(placed, waiting, self.pin, snapshot, catalog)
        }
        room = RoomByMoves(queue.inventory, inventory)
        answers = tuple(
            replace(answer, moves=room.after_moves(queue.trial(answer.workload)))
            if isinstance(answer, Refusal) and answer.workload.affinity is None
            else placed_by_name.get(answer.workload.name, answer)
            for answer in queue.answers
        )
        doubts = (*unclear, *in_turn(tuple(placed_by_name.values()), waiting, snapshot, catalog))
        bindings = tuple(_binding_costs(placed_by_name.values()))
        kept_free = tuple(kept_counts(keep, world, queue.inventory, catalog))
        return Placements(inventory, answers, waiting, doubts, bindings, optimum, later, keep, kept_free)


def _binding_costs(placed: Iterable[Placed]) -> Iterator[str]:
    """Yield what binding VMs to NUMA nodes costs, one line for all of them."""
    bound_vms = [
        placed_vm
        for placed_vm in placed
        if placed_vm.workload.numa is NumaPolicy.REQUIRED and placed_vm.placement.bound_to
    ]
    if len(bound_vms) == 1:
        yield trade_off([bound_vms[0].workload.name], nodes_of(bound_vms[0].placement))
    elif bound_vms:
        yield trade_off([placed_vm.workload.name for placed_vm in bound_vms], "their NUMA nodes")
