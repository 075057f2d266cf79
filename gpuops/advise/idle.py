"""Decides whether a desktop is idle, with the figures of the decision; a VM that cannot be read is never called idle.

Plans, the check before each step that takes a desktop, `gpuops idle` and Ansible all call `idleness`. `readings`
returns the verdict of each source on a VM: idle, busy or unknown, with the number.

Sources: vSphere API, VirtualMachineRuntimeInfo.numMksConnections (consoles only) and .question;
VirtualMachine.recentTask; VirtualMachineQuickStats.overallCpuUsage; PerformanceManager (real-time samples). NVIDIA vGPU
documentation, `nvidia-smi vgpu -q` (use of a vGPU in percent; N/A of a MIG-backed one).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuops.advise.desktop_sessions import MAY_HAVE_SESSION
from gpuops.advise.managed_vms import kept_by_marks
from gpuops.model.desktops.evidence import (
    BY_DEFAULT,
    SESSION_SOURCES,
    SESSIONS_FRESH_S,
    VGPU_USE_FRESH_S,
    SessionCount,
    Source,
    VgpuUse,
)
from gpuops.model.measurements.measurement import CPU_MHZ, CounterSeries, CounterWindow
from gpuops.model.nights.rotation_policy import IdleRule, Policy
from gpuops.model.time_text import format_limit
from gpuops.model.vcenter.vm import PowerState, Vm

NO_RULE: Final = "is in no pool of a policy: nothing says when it is idle"

NEWEST: Final = timedelta(seconds=60)
"""The age up to which the newest sample counts: samples are 20 s apart, and vCenter shows them late (from memory, by up
to two samples)."""

UNASKED: Final = {
    Source.SESSIONS: "nothing lists the sessions in its guest (GPUOPS_GUEST_USERNAME)",
    Source.BROKER: "no broker lists its sessions",
    Source.COMMAND: "no command counts its sessions (idle_command of the target)",
}
"""The reason why a source that was not asked is unknown."""

_REPORTED_BY: Final = {Source.SESSIONS: "its guest", Source.BROKER: "the broker", Source.COMMAND: "the command"}


class Use(StrEnum):
    """Whether a VM is in use."""

    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"
    """Nothing shows that it is used, and not everything that would show it can be read."""


@dataclass(frozen=True, slots=True)
class SourceReading:
    """The reading of one source for a VM, with its number."""

    source: Source
    says: Use
    reason: str
    """A line about the VM that a person can check."""
    required: bool
    """Whether the VM is only idle if this source says so; another source can only show that it is busy."""
    metric: str = ""
    """The performance counter; empty = the source has only one number."""
    value: int | None = None
    """None = it cannot be read, or is not a number."""
    unit: str = ""
    below: int | None = None
    """Idle is below this."""
    age_s: float | None = None
    """How old the value is; None = nothing was read."""
    known_s: float | None = None
    """For how many seconds until the reading it is known to be idle; None = only at the moment of the reading."""
    disconnected_s: int | None = None
    """How long all sessions have been disconnected; None = one is connected, there are no sessions, or unknown."""

    @property
    def vetoes(self) -> bool:
        return self.says is Use.BUSY


def readings(vm: Vm, rule: IdleRule | None) -> tuple[SourceReading, ...]:
    """Return the reading of every source for the VM, in the order in which they decide.

    Without a rule, no source can show that it is idle. A VM that does not run or is not connected shows numbers of an
    earlier time, so its state is the only reading.
    """
    state = _state(vm)
    if vm.power is not PowerState.ON or vm.connected is not True:
        return (state,)
    required = rule.needed if rule is not None else BY_DEFAULT
    source_readings = [state, _console(vm, Source.CONSOLE in required), _cpu(vm, rule, Source.CPU in required)]
    if rule is not None:
        source_readings += [_counter(vm, rule, name, below) for name, below in rule.limits.items()]
    if rule is not None and rule.vgpu_below_percent is not None:
        source_readings.append(_vgpu(vm.vgpu_use, rule.vgpu_below_percent, required=Source.NVIDIA_SMI in required))
    session_sources = [source for source in SESSION_SOURCES if source in required or source in (vm.sessions or {})]
    timeout_s = rule.disconnected_timeout_s if rule is not None else None
    source_readings += [_sessions(vm, source, timeout_s, required=source in required) for source in session_sources]
    return tuple(source_readings)


def _state(vm: Vm) -> SourceReading:
    """Return the reading of vCenter's own state of the VM: a question or a task means busy."""
    says, reason = Use.IDLE, "runs; no question or task"
    if vm.power is not PowerState.ON:
        says, reason = Use.UNKNOWN, f"is not running ({vm.power or 'its power state cannot be read'})"
    elif vm.connected is not True:
        says, reason = Use.UNKNOWN, "is not connected, or its connection state is unknown"
    elif vm.question is not None:
        says, reason = Use.BUSY, f"waits for an answer: {vm.question}"
    elif vm.tasks:
        says, reason = Use.BUSY, f"a task is {vm.tasks[0].state}: {vm.tasks[0].name}"
    elif vm.unreadable:
        says, reason = Use.UNKNOWN, f"cannot be read completely: {', '.join(vm.unreadable)}"
    return SourceReading(Source.STATE, says, reason, required=True, age_s=0.0)


def _console(vm: Vm, required: bool) -> SourceReading:
    consoles = vm.console_connections
    if consoles is None:
        return SourceReading(Source.CONSOLE, Use.UNKNOWN, "its console connections cannot be read", required)
    says, reason = (Use.BUSY, f"{consoles} console connection(s) open") if consoles else (Use.IDLE, "no console open")
    return SourceReading(Source.CONSOLE, says, reason, required, value=consoles, below=1, age_s=0.0)


def _cpu(vm: Vm, rule: IdleRule | None, required: bool) -> SourceReading:
    used_mhz = vm.cpu_usage_mhz
    if rule is None:
        return SourceReading(Source.CPU, Use.UNKNOWN, NO_RULE, required=True, value=used_mhz, unit="MHz")
    below = rule.cpu_below_mhz
    if used_mhz is None:
        return SourceReading(Source.CPU, Use.UNKNOWN, "its CPU usage cannot be read", required, unit="MHz", below=below)
    says, reason = Use.IDLE if used_mhz < below else Use.BUSY, f"uses {used_mhz} MHz, idle is below {below}"
    return SourceReading(Source.CPU, says, reason, required, value=used_mhz, unit="MHz", below=below, age_s=0.0)


def _counter(vm: Vm, rule: IdleRule, name: str, below: int) -> SourceReading:
    """Return the reading of a counter: one sample at or above the limit means busy, even if others are missing."""
    required, unit = Source.COUNTERS in rule.needed, "MHz" if name == CPU_MHZ else ""
    window = (vm.counters or {}).get(name)
    if window is None:
        reason = f"vCenter has no samples of its {name}"
        return SourceReading(Source.COUNTERS, Use.UNKNOWN, reason, required, name, unit=unit, below=below)
    says, reason = _judge_samples(window, rule.for_s, name, below)
    return SourceReading(
        Source.COUNTERS,
        says,
        reason,
        required,
        name,
        window.highest,
        unit,
        below,
        age_s=(window.asked - window.until).total_seconds(),
        known_s=(window.asked - window.since).total_seconds() if says is Use.IDLE else None,
    )


def _judge_samples(window: CounterWindow, for_s: int, name: str, below: int) -> tuple[Use, str]:
    if window.highest >= below:
        used = f"used {window.highest} MHz" if name == CPU_MHZ else f"{name} was {window.highest}"
        return Use.BUSY, f"{used} within the last {format_limit(for_s)}, idle is below {below}"
    if window.asked - window.until > NEWEST:
        old = format_limit((window.asked - window.until).total_seconds())
        return Use.UNKNOWN, f"the newest sample of its {name} is {old} old"
    known_s = (window.asked - window.since).total_seconds()
    if known_s < for_s:
        return Use.UNKNOWN, f"its {name} is known for {format_limit(known_s)}, and {format_limit(for_s)} are asked for"
    return Use.IDLE, f"{name} was {window.highest} at most for {format_limit(for_s)}, idle is below {below}"


def _vgpu(vgpu_use: VgpuUse | None, below: int, *, required: bool) -> SourceReading:
    """Return the reading of nvidia-smi, which is about one moment and not a period."""
    says, age_s = Use.UNKNOWN, None
    if vgpu_use is None or vgpu_use.percent is None:
        percent = None
        reason = f"the use of its vGPU is not known: {vgpu_use.because if vgpu_use else 'its host is not asked'}"
    else:
        percent, age_s = vgpu_use.percent, vgpu_use.age_s
        if vgpu_use.age_s > VGPU_USE_FRESH_S:
            reason = f"the reading of nvidia-smi for its vGPU is {format_limit(vgpu_use.age_s // 60 * 60)} old"
        else:
            says = Use.IDLE if percent < below else Use.BUSY
            reason = f"its vGPU is used {percent} %, idle is below {below}"
    return SourceReading(Source.NVIDIA_SMI, says, reason, required, value=percent, unit="%", below=below, age_s=age_s)


def vgpu_use_at(moment: datetime, series: CounterSeries) -> VgpuUse | None:
    """Return the newest use of a vGPU in a stored series at that moment; None = none. Its age is that of its step's
    start."""
    steps = min(len(series.steps), (moment - series.begin) // series.step + 1)
    for number in range(steps - 1, -1, -1):
        step = series.steps[number]
        if step is not None:
            hundredths = step.average if step.highest is None else step.highest
            age = moment - (series.begin + number * series.step)
            return VgpuUse(min(100, round(hundredths / 100)), int(age.total_seconds()))
    return None


def _sessions(vm: Vm, source: Source, timeout_s: int | None, *, required: bool) -> SourceReading:
    """Return the reading of a source of sessions; disconnected sessions show no use after `timeout_s`."""
    session_count = (vm.sessions or {}).get(source)
    if session_count is None:
        return SourceReading(source, Use.UNKNOWN, UNASKED[source], required, unit="sessions", below=1)
    says, reason = _judge_sessions(session_count, source, timeout_s)
    return SourceReading(
        source,
        says,
        reason,
        # a VM that may have a session is not idle, even where the pool requires no source of sessions
        required or (session_count.used is None and session_count.because in MAY_HAVE_SESSION),
        value=session_count.count,
        unit="sessions",
        # disconnected sessions are idle by the time since, not by their number
        below=None if session_count.used and says is Use.IDLE else 1,
        age_s=session_count.age_s if session_count.used is not None else None,
        disconnected_s=session_count.disconnected_s,
    )


def _judge_sessions(session_count: SessionCount, source: Source, timeout_s: int | None) -> tuple[Use, str]:
    """Return whether these sessions show use, and why. Disconnected ones do until `timeout_s` (None = for ever)."""
    reporter = _REPORTED_BY[source]
    if session_count.used is None:
        return Use.UNKNOWN, f"its sessions are not known: {session_count.because or f'{reporter} does not report them'}"
    if session_count.used:
        if session_count.because:  # a session that cannot be counted, for example on a machine that may be this VM
            return Use.BUSY, session_count.because
        reason = f"{session_count.count} session(s)" if session_count.count else "it is used"
        if timeout_s is not None and session_count.disconnected_s is not None:
            disconnected_s = session_count.disconnected_s // 60 * 60  # whole minutes
            reason += f" disconnected for {format_limit(disconnected_s)}, idle is from {format_limit(timeout_s)} on"
        return Use.BUSY if session_count.in_use(timeout_s) else Use.IDLE, f"{reason}, as {reporter} reports"
    if session_count.age_s > SESSIONS_FRESH_S:
        return Use.UNKNOWN, f"the answer of {reporter} about its sessions is {format_limit(session_count.age_s)} old"
    return Use.IDLE, f"no sessions, as {reporter} reports"


LONG_S: Final = 3300
"""Idle seconds that count as long. In the simulated office `readers`, 18 % of the desktops that are idle for this
long are in use, and 48 % of those idle for 15 minutes (November 2026)."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """The verdict on one VM, and the readings that led to it."""

    use: Use
    reason: str
    """Why; a line about the VM that a person can check."""
    decided_by: Source | None
    """The source that makes it busy or unknown; None = it is idle by all required sources."""
    readings: tuple[SourceReading, ...]
    """What each source says."""

    @property
    def objection(self) -> str | None:
        """Return why the VM must be left alone; None = it is idle."""
        return None if self.use is Use.IDLE else self.reason

    @property
    def idle_for_s(self) -> float | None:
        """Return for how long it is known to be idle: the shortest period of a performance counter.

        None = only at the moment of the reading.
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
    uncertain = [verdict for verdict in idle if not verdict.requires_sessions]
    return UncertainVerdicts(len(uncertain), all((verdict.idle_for_s or 0) >= LONG_S for verdict in uncertain))


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
    unknown = next((reading for reading in source_readings if reading.required and reading.says is Use.UNKNOWN), None)
    if unknown is not None or rule is None:
        assert unknown is not None, "without a rule the reading of the CPU is unknown"
        return Idleness(Use.UNKNOWN, unknown.reason, unknown.source, source_readings)
    return Idleness(Use.IDLE, _why_idle(source_readings, rule), None, source_readings)


def _why_idle(source_readings: Sequence[SourceReading], rule: IdleRule) -> str:
    """Return the reason of an idle verdict: `uses 12 MHz, idle is below 500 for 15 min; no console, question or
    task`."""
    idle = {reading.source: reading for reading in source_readings if reading.says is Use.IDLE}
    parts = []
    if Source.CPU in idle:
        counters = [reading for reading in source_readings if reading.source is Source.COUNTERS]
        is_idle_for_long = rule.for_s and all(reading.says is Use.IDLE for reading in counters)
        parts.append(idle[Source.CPU].reason + (f" for {format_limit(rule.for_s)}" if is_idle_for_long else ""))
    parts += [idle[source].reason for source in (Source.NVIDIA_SMI, *SESSION_SOURCES) if source in idle]
    parts.append("no console, question or task" if Source.CONSOLE in idle else "no question or task")
    return "; ".join(parts)
