"""Plans changes of several VMs after one reading of vCenter, each on the snapshot that the earlier plans leave.

200 single runs would log in 200 times, read everything 200 times, and wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import ClassVar

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan, Wave, refuse
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import ReconfigureVm
from gpuops.plan.placement.project import project
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach

Change = Attach | Detach


@dataclass(frozen=True, slots=True)
class Part:
    """The plan of one VM. `vm` is its ref, or None if this vCenter has no such VM."""

    request: Change
    vm: str | None
    plan: Plan


@dataclass(frozen=True, slots=True)
class SeveralVms:
    """Attachments and detachments, at most one a VM, in the order in which they find their room.

    With `partial` the possible ones are done and the others are reported (exit code 4). Without it, nothing is done
    unless all are possible.
    """

    run_kind: ClassVar[str] = "severalvms"

    requests: tuple[Change, ...]
    partial: bool = False

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        """Refs of the VMs whose devices the plan needs: those on hosts without GPUs are not read in bulk."""
        return self._collect_refs(lambda request: request.vm_details(inventory))

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Refs of the hosts whose QueryConfigTarget the plan needs."""
        return self._collect_refs(lambda request: request.config_targets(inventory))

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Plan all requests in this snapshot. A request with an unknown name is refused like any other.

        Raises UsageError if two requests name the same VM.
        """
        parts = self.parts(inventory, catalog, now)
        rejections = tuple(dict.fromkeys(reason for part in parts for reason in part.plan.rejections))
        possible = [part.plan for part in parts if part.plan.feasible]
        withheld = tuple(step for part in parts for step in (part.plan.withheld or part.plan.steps))
        if rejections and not (self.partial and possible):
            return refuse(*rejections, withheld=withheld)
        return Plan(
            waves=tuple(_waves(possible)),
            unmet=rejections,
            warnings=tuple(dict.fromkeys(line for plan in possible for line in plan.warnings)),
            because=tuple(dict.fromkeys(line for plan in possible for line in plan.because)),
            choices=tuple(choice for plan in possible for choice in plan.choices),
            disruptive=any(plan.disruptive for plan in possible),
        )

    def parts(self, inventory: Inventory, catalog: Catalog, now: datetime) -> tuple[Part, ...]:
        """Return each VM's plan, made on the snapshot after the feasible plans before it. Raises UsageError."""
        # `snapshot` is what the earlier plans leave; `names_by_ref` holds the name under which each VM was requested.
        snapshot, parts, names_by_ref = inventory, [], dict[str, str]()
        for request in self.requests:
            try:
                vm = inventory.find_vm(request.vm)
                if vm.ref in names_by_ref:
                    raise _Twice(f"{names_by_ref[vm.ref]!r} and {request.vm!r} are one VM")
                names_by_ref[vm.ref] = request.vm
                plan = request.plan(snapshot, catalog, now)
            # a mistake in the call, not a refusal of one VM
            except _Twice:
                raise
            except UsageError as error:
                parts.append(Part(request, None, refuse(Rejection(request.vm, error.message, hint=error.hint))))
                continue
            parts.append(Part(request, vm.ref, _with_vm_name(vm.name, plan)))
            for step in plan.steps:
                snapshot = project(step, snapshot, catalog)
        return tuple(parts)

    def _collect_refs(self, refs_of: Callable[[Change], Collection[str]]) -> Collection[str]:
        """Collect the refs that the requests need read, each once. Requests with unknown names need none."""
        refs: dict[str, None] = {}
        for request in self.requests:
            try:
                refs |= dict.fromkeys(refs_of(request))
            except UsageError:
                continue  # `parts` reports it
        return tuple(refs)


class _Twice(UsageError):
    """Two requests for one VM. The second cannot be planned: only vCenter assigns the device keys of the first."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="name each VM once, and attach its other devices in a second run")


def _with_vm_name(name: str, plan: Plan) -> Plan:
    """Return the plan with the VM's name in front of reasons about a host or a GPU."""
    rejections = tuple(
        rejection if rejection.subject == name else replace(rejection, subject=f"{name}: {rejection.subject}")
        for rejection in plan.rejections
    )
    return replace(plan, rejections=rejections)


def _waves(plans: list[Plan]) -> Iterator[Wave]:
    """Yield the waves of the plans in order. Neighbouring plans that only reconfigure share one wave.

    Such VMs are off and hold no GPU. A plan that stops, moves or starts its VM runs alone, so that each start finds the
    free GPUs that it was planned on.
    """
    for only_reconfigure, group in groupby(plans, key=_only_reconfigures):
        if not only_reconfigure:
            yield from (wave for plan in group for wave in plan.waves)
            continue
        steps = tuple(step for plan in group for step in plan.steps)
        if steps:
            yield Wave(f"reconfigure {len(steps)} VMs", steps)


def _only_reconfigures(plan: Plan) -> bool:
    return all(isinstance(step, ReconfigureVm) for step in plan.steps)
