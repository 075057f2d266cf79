"""One night with its decisions, refusals and warnings, and the resulting plan. `night.py` builds it; `rotate plan`
shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gpuops.model.nights.night_record import Role, marker_value
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState, Vm, VmDrs
from gpuops.plan.core.plan import Choice, Plan, Wave, refuse
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import (
    CloseGate,
    OpenGate,
    PowerOnVm,
    RelocateVm,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.placement.suspended_vms import role_of, suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import Start, WaitingVm
from gpuops.plan.rotation.ml_queue.queue import QueueDecision
from gpuops.plan.rotation.ml_queue.team_shares import TeamShares
from gpuops.plan.rotation.nights.bounds import Bounds
from gpuops.plan.rotation.nights.desktops import Survey

NO_NIGHT: Final = "there is no night now"


@dataclass(frozen=True, slots=True)
class NightPlan:
    """One night before it begins."""

    policy: Policy
    night: str
    desktops: Survey
    decision: QueueDecision
    bounds: Bounds
    refusals: tuple[Rejection, ...] = ()
    """Why there is no night now."""
    is_over: bool = False
    """Whether its return has begun, or it is `skipped`: nothing more is taken."""
    skipped: bool = False
    """Whether `rotate skip-next` skipped it."""
    off: str = ""
    """Why the policy has no night this evening although a timer called; empty = it has one."""
    drs: Mapping[str, VmDrs] = field(default_factory=dict)
    """ML VM ref -> its DRS setting now, for the VMs that get an override for the night."""
    overrides: tuple[SetVmDrs, ...] = ()
    lease: int | None = None
    """Number of the lease of this night; None = the policy has no lock VM, or nothing is changed."""
    opened: tuple[OpenGate, ...] = ()
    """Steps that open the gates of running desktops that an earlier run of this night closed and this plan leaves."""
    queue: tuple[WaitingVm, ...] = ()
    """The ML queue in the order in which it is served."""
    shares: TeamShares | None = None
    """Use and shares of the teams; None = the policy has no `fair_share`."""
    also_kept: tuple[str, ...] = ()
    """Names of other policies with open nights, whose floors hold as well."""
    unmet: tuple[Rejection, ...] = ()
    """A refusal for each pool that is below its floor because another night took desktops of it."""

    def plan(self) -> Plan:
        """Return the plan: mark the VMs, suspend desktops, move ML VMs, keep DRS off them, start them."""
        if self.refusals:
            return refuse(*self.refusals)
        if self.is_over:
            return Plan(because=(self.off or f"night {self.night} is {self.ended_reason}",))
        return Plan(
            waves=tuple(wave for wave in self._waves() if wave.steps),
            warnings=tuple(self._warnings()),
            because=tuple(self._because()),
            choices=self.choices,
            disruptive=bool(self.decision.starts),
            not_after=self.not_after,
            unmet=self.unmet,
        )

    @property
    def ended_reason(self) -> str:
        """Why nothing more is taken in a night that is over."""
        if self.skipped:
            return "skipped by `gpuops rotate skip-next`: add --undo to allow it again"
        return "over: its return has begun"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """A reason for every VM of the queue and of the pools."""
        ml_vm_by_desktop = {desktop.ref: start.vm.name for start in self.decision.starts for desktop in start.desktops}
        not_needed = NO_NIGHT if self.refusals or self.is_over else "no VM of the queue needs its GPU"
        desktop_choices = list(self.desktops.staying)
        for vm in self.desktops.free_to_take:
            is_taken = vm.ref in ml_vm_by_desktop
            reason = f"makes room for {ml_vm_by_desktop[vm.ref]}" if is_taken else f"idle; {not_needed}"
            desktop_choices.append(Choice(vm.name, chosen=is_taken, reason=reason))
        return (*self.decision.choices, *sorted(desktop_choices, key=lambda choice: choice.subject))

    @property
    def return_times(self) -> Mapping[str, datetime]:
        """Host ref -> when the return to the host begins; empty without a window."""
        load = self.bounds.load(self.decision.starts)
        hosts = {start.host.ref for start in self.decision.starts} | {vm.host for vm in self.bounds.taken_desktops}
        moments = {host: self.bounds.return_at(host, load) for host in sorted(filter(None, hosts))}
        return {host: moment for host, moment in moments.items() if moment is not None}

    @property
    def not_after(self) -> Mapping[str, datetime]:
        """VM ref -> the moment after which no step of this plan begins for the VM."""
        times = self.return_times
        host_by_vm = {vm.ref: start.host.ref for start in self.decision.starts for vm in (start.vm, *start.desktops)}
        return {ref: times[host] for ref, host in host_by_vm.items() if host in times}

    def _waves(self) -> Iterator[Wave]:
        """Yield the waves of the plan, some of them empty.

        All markers are set before anything is taken, so that a return without the journal finds every VM. In each
        stage, GPUs must be free before a VM moves or starts there, and its DRS override must be set before it runs.
        """
        yield Wave("let users in to desktops that are not taken", self.opened)
        yield Wave("mark what is taken", tuple(self._marks()))
        for stage in self.decision.stages:
            desktops = [vm for start in stage for vm in start.desktops]
            yield Wave("keep users away from idle desktops", tuple(self._gate_closes(desktops)))
            suspends: list[Step] = [suspend_or_shut_down(vm) for start in stage for vm in start.desktops]
            yield Wave("shut down idle desktops", tuple(step for step in suspends if isinstance(step, ShutDownGuest)))
            yield Wave("suspend idle desktops", tuple(step for step in suspends if isinstance(step, SuspendVm)))
            moves = (RelocateVm(start.vm.ref, start.host.ref) for start in stage if start.moves)
            yield Wave("move ML VMs to their hosts", tuple(moves))
            started = {start.vm.ref for start in stage}
            overrides = tuple(step for step in self.overrides if step.vm in started)
            yield Wave("keep DRS off the ML VMs", overrides)
            yield Wave("start ML VMs", tuple(map(_power_on, stage)))

    def _gate_closes(self, desktops: Iterable[Vm]) -> Iterator[CloseGate]:
        """Yield the steps that close gates at the broker, except for gates that an interrupted run has closed."""
        for vm in desktops:
            pool, gate = self.policy.pool_of(vm), vm.gate
            if pool is not None and pool.gated and gate is not None and not gate.closed:
                yield CloseGate(vm.ref, gate.machine)

    def _marks(self) -> Iterator[SetAttribute]:
        """Yield the steps that mark VMs, except for VMs that an interrupted run has marked."""
        vms_with_role: Iterable[tuple[Vm, Role]] = [
            *((vm, role_of(vm)) for vm in self.decision.desktops),
            *((start.vm, Role.ML) for start in self.decision.starts),
        ]
        for vm, role in vms_with_role:
            marker_text = marker_value(self.night, role, self.drs.get(vm.ref), lease=self.lease)
            if vm.attributes.get(self.policy.marker) != marker_text:
                yield SetAttribute(vm.ref, self.policy.marker, marker_text)

    def _warnings(self) -> Iterator[str]:
        """Yield what is probably a mistake in the policy, so that it is noticed before a night takes nothing."""
        takes_desktops = self.policy.spare is None or self.policy.spare.take_idle
        for pool in self.policy.pools:
            if takes_desktops and not pool.users_kept_away:
                yield f"pool {pool.name}: `parked: false`, so none of its desktops is taken"
        yield from (f"pool {name}: no VM is in it" for name in self.desktops.empty_pools)
        yield from (f"pool {name}: none of its desktops carries {mark}" for name, mark in self.desktops.disowned_pools)
        for reason in self.desktops.machines_not_found:
            yield f"machines of the connection broker that were not found in this vCenter: {reason}"
        for pool_name, names in self.desktops.unknown_to_broker.items():
            yield f"pool {pool_name}: the connection broker has no machine for {', '.join(names)}"
        yield from (f"ML queue: {reason}" for reason in self.decision.unknown)
        yield from (f"ML queue: {remark}" for remark in (self.shares.unclear if self.shares is not None else ()))

    def _because(self) -> Iterator[str]:
        """Yield remarks on the plan: its night, other floors that hold, and why no desktop is suspended."""
        spare = self.policy.spare
        if spare is not None:
            yield f"spare capacity: {', '.join(map(str, spare.keep_free))} are kept free for desktops"
            return
        yield f"night {self.night}"
        yield from (f"the floors of policy {name} hold as well: its night is open" for name in self.also_kept)
        yield f"{self.desktops.other_vms} other VMs are in no pool of this policy"
        if not self.policy.ml:
            yield "the ML queue is empty: no desktop is suspended for nothing"
        elif not self.decision.starts:
            yield "no VM of the ML queue starts, so no desktop is suspended"


def _power_on(start: Start) -> PowerOnVm:
    return PowerOnVm(start.vm.ref, start.host.ref, resumes=start.vm.power is PowerState.SUSPENDED)
