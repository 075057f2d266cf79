"""Rotation, prospect: what one night comes to, with all that speaks for it and against it; and the plan that it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gpuops.model.rotation import Policy, Role, marker_value
from gpuops.model.vm import Vm, VmDrs
from gpuops.plan.core.plan import Choice, Plan, Rejection, Wave, refuse
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, SetAttribute, SetVmDrs, ShutDownGuest, Step, SuspendVm
from gpuops.plan.placement.return_order import role_of, suspend_or_shut_down
from gpuops.plan.rotation.bounds import Bounds
from gpuops.plan.rotation.desktops import Survey
from gpuops.plan.rotation.queue import Served

NO_NIGHT: Final = "there is no night now"


@dataclass(frozen=True, slots=True)
class Prospect:
    """One night, before anything is done."""

    policy: Policy
    night: str
    found: Survey
    served: Served
    bounds: Bounds
    refusals: tuple[Rejection, ...] = ()
    """Why there is no night now."""
    over: bool = False
    """There is nothing to take any more, or `skipped` nothing at all."""
    skipped: bool = False
    """Somebody said that it is not to be taken."""
    drs: Mapping[str, VmDrs] = field(default_factory=dict)
    """ML VM ref -> what DRS does with it now, where DRS is kept off it for the night."""
    overrides: tuple[SetVmDrs, ...] = ()
    lease: int | None = None
    """Number of the lease under which it is taken; None = the policy has no lock VM, or nothing is to be done."""

    def plan(self) -> Plan:
        """The steps: mark, make room, move, start."""
        if self.refusals:
            return refuse(*self.refusals)
        if self.over:
            return Plan(because=(f"night {self.night} is {self.ended}",))
        return Plan(
            waves=tuple(wave for wave in self._waves() if wave.steps),
            warnings=tuple(self._warnings()),
            because=tuple(self._because()),
            choices=self.choices,
            disruptive=bool(self.served.starts),
            not_after=self.not_after,
        )

    @property
    def ended(self) -> str:
        """Why nothing is taken, when it is over."""
        if self.skipped:
            return "skipped, as somebody said: gpuops rotate skip-next --undo takes that back"
        return "over: its morning has begun"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """A reason for every VM of the queue and of the pools."""
        room_for = {desktop.ref: start.vm.name for start in self.served.starts for desktop in start.desktops}
        left = NO_NIGHT if self.refusals or self.over else "no VM of the queue needs its GPU"
        free = [
            Choice(vm.name, chosen=True, reason=f"makes room for {room_for[vm.ref]}")
            if vm.ref in room_for
            else Choice(vm.name, chosen=False, reason=f"idle; {left}")
            for vm in self.found.free_to_take
        ]
        return (*self.served.choices, *sorted((*free, *self.found.kept), key=lambda choice: choice.subject))

    @property
    def return_times(self) -> Mapping[str, datetime]:
        """Host ref -> from when on nothing is taken there; empty without a window."""
        load = self.bounds.load(self.served.starts)
        hosts = {start.host.ref for start in self.served.starts} | {vm.host for vm in self.bounds.away}
        found = {host: self.bounds.return_at(host, load) for host in sorted(filter(None, hosts))}
        return {host: moment for host, moment in found.items() if moment is not None}

    @property
    def not_after(self) -> Mapping[str, datetime]:
        """VM ref -> from when on no step of this plan is begun on it."""
        times = self.return_times
        taken = {vm.ref: start.host.ref for start in self.served.starts for vm in (start.vm, *start.desktops)}
        return {ref: times[host] for ref, host in taken.items() if host in times}

    def _waves(self) -> Iterator[Wave]:
        yield Wave("mark what is taken", tuple(self._marks()))
        for stage in self.served.stages:
            taken: list[Step] = [suspend_or_shut_down(vm) for start in stage for vm in start.desktops]
            yield Wave("shut down idle desktops", tuple(step for step in taken if isinstance(step, ShutDownGuest)))
            yield Wave("suspend idle desktops", tuple(step for step in taken if isinstance(step, SuspendVm)))
            moves = (RelocateVm(start.vm.ref, start.host.ref) for start in stage if start.moves)
            yield Wave("move ML VMs to their hosts", tuple(moves))
            started = {start.vm.ref for start in stage}
            overrides = tuple(step for step in self.overrides if step.vm in started)
            yield Wave("keep DRS off the ML VMs", overrides)
            yield Wave("start ML VMs", tuple(PowerOnVm(start.vm.ref, start.host.ref) for start in stage))

    def _marks(self) -> Iterator[SetAttribute]:
        """One for each VM that a run which was cut off has not marked already."""
        taken: Iterable[tuple[Vm, Role]] = [
            *((vm, role_of(vm)) for vm in self.served.desktops),
            *((start.vm, Role.ML) for start in self.served.starts),
        ]
        for vm, role in taken:
            value = marker_value(self.night, role, self.drs.get(vm.ref), lease=self.lease)
            if vm.attributes.get(self.policy.marker) != value:
                yield SetAttribute(vm.ref, self.policy.marker, value)

    def _warnings(self) -> Iterator[str]:
        """What in the policy is likely not meant so; a night that does less than hoped is seen only in the morning."""
        for pool in self.policy.pools:
            if not pool.parked:
                yield f"pool {pool.name}: `parked: false`, so none of its desktops is taken"
        yield from (f"pool {name}: no VM is in it" for name in self.found.empty_pools)
        yield from (f"pool {name}: none of its desktops carries {mark}" for name, mark in self.found.disowned_pools)
        yield from (f"ML queue: {reason}" for reason in self.served.unknown)

    def _because(self) -> Iterator[str]:
        yield f"night {self.night}"
        yield f"{self.found.other_vms} other VMs are in no pool of this policy"
        if not self.policy.ml:
            yield "the ML queue is empty: no desktop is suspended for nothing"
        elif not self.served.starts:
            yield "no VM of the ML queue starts, so no desktop is suspended"
