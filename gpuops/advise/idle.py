"""Decides whether a desktop is idle, with the figures of the decision; what cannot be read is never called idle.

Plans, the check before each step that takes a desktop, `gpuops idle` and Ansible all ask `idleness`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.advise.evidence import SourceReading, Use, readings
from gpuops.advise.managed_vms import kept_by_marks
from gpuops.model.desktops.evidence import SESSION_SOURCES, Source
from gpuops.model.nights.rotation import IdleRule, Policy
from gpuops.model.time_text import format_limit
from gpuops.model.vcenter.vm import Vm

LONG_S: Final = 3300
"""Idle seconds that count as long. In the simulated office `readers`, 18 % of the desktops that are idle for this
long are in use, and 48 % of those idle for 15 minutes (November 2026)."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """The verdict on one VM, with all that it was given by."""

    use: Use
    reason: str
    """Why; a line about the VM that a person can check."""
    decided_by: Source | None
    """The source that makes it busy or unknown; None = it is idle, by all that is required."""
    readings: tuple[SourceReading, ...]
    """What each source says."""

    @property
    def objection(self) -> str | None:
        """Return why the VM must be left alone; None = it is idle."""
        return None if self.use is Use.IDLE else self.reason

    @property
    def idle_for_s(self) -> float | None:
        """Return how long it is known to be idle: the least that performance counters tell.

        None = at the look alone.
        """
        durations_s = [reading.known_s for reading in self.readings if reading.known_s is not None]
        return min(durations_s) if durations_s and self.use is Use.IDLE else None

    @property
    def requires_sessions(self) -> bool:
        """Return whether the VM is idle only if a source of sessions reports it."""
        return any(reading.required and reading.source in SESSION_SOURCES for reading in self.readings)


@dataclass(frozen=True, slots=True)
class JudgedVm:
    """A VM, its pool and the verdict on it."""

    vm: Vm
    pool: str | None
    """None = it is in no pool of the policy, or there is no policy."""
    verdict: Idleness
    kept_by_marks: str | None = None
    """Why no night takes it, idle or not: it opted out, or its owner has not agreed; None = nothing of the kind."""


@dataclass(frozen=True, slots=True)
class UncertainVerdicts:
    """The idle verdicts that require no source of sessions: counters cannot tell a user who reads from an idle VM."""

    count: int
    are_all_long: bool
    """Whether each VM was idle for at least LONG_S, so that fewer of them are in use."""


def verdicts_without_sessions(vms: Sequence[JudgedVm]) -> UncertainVerdicts:
    """Return how many of the idle verdicts require no source of sessions, and whether all of these idled for long."""
    idle = [vm.verdict for vm in vms if vm.verdict.use is Use.IDLE]
    alone = [verdict for verdict in idle if not verdict.requires_sessions]
    return UncertainVerdicts(len(alone), all((verdict.idle_for_s or 0) >= LONG_S for verdict in alone))


def judge_vms(vms: Iterable[Vm], policy: Policy | None) -> tuple[JudgedVm, ...]:
    """Return the verdict on each of these VMs by its pool, in the order of pools and names."""
    order = {pool.name: number for number, pool in enumerate(policy.pools)} if policy is not None else {}
    judged_vms = []
    for vm in vms:
        pool = policy.pool_of(vm) if policy is not None else None
        rule = pool.idle if pool is not None else None
        mark_reason = kept_by_marks(policy, pool, vm) if policy is not None and pool is not None else None
        judged_vms.append(JudgedVm(vm, pool.name if pool is not None else None, idleness(vm, rule), mark_reason))
    judged_vms.sort(key=lambda judged: (order.get(judged.pool or "", len(order)), judged.vm.name, judged.vm.ref))
    return tuple(judged_vms)


def idleness(vm: Vm, rule: IdleRule | None) -> Idleness:
    """Return the verdict on a VM, by the rule of its pool. Without a rule (None), a VM is never idle.

    The VM is busy if any source shows use. It is unknown if none does and a required source has no reading. CPU counts
    because vCenter shows a remote-desktop session in no other way. Under a rule with `for_s`, CPU use must have been
    below its limit in every sample of that time: a user who reads or is away for a coffee uses none at one moment.
    """
    source_readings = readings(vm, rule)
    busy = next((reading for reading in source_readings if reading.vetoes), None)
    if busy is not None:
        return Idleness(Use.BUSY, busy.reason, busy.source, source_readings)
    untold = next((reading for reading in source_readings if reading.required and reading.says is Use.UNKNOWN), None)
    if untold is not None or rule is None:
        assert untold is not None, "without a rule nothing says when a VM is idle"
        return Idleness(Use.UNKNOWN, untold.reason, untold.source, source_readings)
    return Idleness(Use.IDLE, _why_idle(source_readings, rule), None, source_readings)


def _why_idle(source_readings: Sequence[SourceReading], rule: IdleRule) -> str:
    """Return `uses 12 MHz, idle is below 500 for 15 min; no console, question or task`."""
    idle = {reading.source: reading for reading in source_readings if reading.says is Use.IDLE}
    parts = []
    if Source.CPU in idle:
        counters = [reading for reading in source_readings if reading.source is Source.COUNTERS]
        is_idle_for_long = rule.for_s and all(reading.says is Use.IDLE for reading in counters)
        parts.append(idle[Source.CPU].reason + (f" for {format_limit(rule.for_s)}" if is_idle_for_long else ""))
    parts += [idle[source].reason for source in (Source.NVIDIA_SMI, *SESSION_SOURCES) if source in idle]
    parts.append("no console, question or task" if Source.CONSOLE in idle else "no question or task")
    return "; ".join(parts)
