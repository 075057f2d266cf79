"""Text and documents of `gpuops idle` and `gpuops broker show`: whether desktops are in use, and how that is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from gpuops.advise.idle import JudgedVm, SourceReading, Use, verdicts_without_sessions
from gpuops.model.desktops.broker import (
    AfterLogoff,
    BrokerIdentity,
    BrokerState,
    DesktopPool,
    DesktopPowerPolicy,
    PoolKind,
    PoolState,
)
from gpuops.model.desktops.evidence import Source
from gpuops.model.time_text import format_limit, format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import DocumentRecord, PrintedDocument, Ref, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.text import count

_STYLES: Final = {Use.IDLE: "green", Use.BUSY: "yellow", Use.UNKNOWN: "dim"}


def idle_text(vms: Sequence[JudgedVm], inventory: Inventory, *, explain: bool) -> Shown:
    """Return a row for each VM; with `explain`, a row for each source of each VM."""
    heading = Text(f"{count(len(vms), 'VM')}, read {format_zoned_minute(inventory.taken_at)}", "bold")
    if explain:
        return (heading, *(line for vm in vms for line in _explanation(vm)))
    table = table_of(
        vms,
        Column("VM", lambda vm: vm.vm.name, whole=True),
        Column("pool", lambda vm: vm.pool or "-"),
        Column("verdict", lambda vm: Text(vm.verdict.use, _STYLES[vm.verdict.use])),
        Column("for", lambda vm: _idle_time(vm.verdict.idle_for_s) if vm.verdict.use is Use.IDLE else "-"),
        Column("by", lambda vm: vm.verdict.decided_by or "all"),
        Column("because", _reason),
    )
    counts_by_use = Counter(vm.verdict.use for vm in vms)
    totals = Text(", ".join(f"{counts_by_use[use]} {use}" for use in Use), "bold")
    uncertain = verdicts_without_sessions(vms)
    if not uncertain.count:
        return (heading, table, totals)
    share = "one in six" if uncertain.are_all_long else "one in two"
    warning = (
        f"{uncertain.count} idle without a required session source: if users only read, about {share} is in use "
        "(gpuops help idle)"
    )
    return (heading, table, totals, Text(warning))


class EvidenceReadingRecord(DocumentRecord, frozen=True):
    """The reading of one source for a VM."""

    source: Source
    metric: Annotated[str, "the performance counter; empty = the source has one figure only"]
    says: Use
    required: Annotated[bool, "whether the VM is idle only if this source reports idle; other sources can only veto"]
    veto: Annotated[bool, "whether it prevents an idle verdict"]
    value: Annotated[int | None, "null = it cannot be read, or is no number"]
    unit: str
    below: Annotated[int | None, "idle is below this"]
    disconnected_s: Annotated[
        int | None, "for how long all of its sessions are disconnected; null = they are not, or not known"
    ]
    age_s: Annotated[float | None, "age of the value; null = nothing was read"]
    because: str

    @classmethod
    def made_of(cls, reading: SourceReading) -> Self:
        return cls.from_attributes(reading, veto=reading.vetoes, because=reading.reason)


class VmVerdictRecord(DocumentRecord, frozen=True):
    """The verdict on a VM, with the readings it is based on."""

    ref: Ref
    name: str
    pool: str | None
    verdict: Use
    because: str
    kept_by_marks: Annotated[str | None, "why no night takes it even if idle, such as an opt-out"]
    decided_by: Annotated[Source | None, "null = it is idle by all required sources"]
    idle_for_s: Annotated[
        float | None, "for how long it is known to be idle; null = at this reading only, or it is not idle"
    ]
    sources: Annotated[list[EvidenceReadingRecord], "in the order in which they decide"]

    @classmethod
    def made_of(cls, judged: JudgedVm) -> Self:
        verdict = judged.verdict
        return cls.from_attributes(
            judged, verdict, judged.vm, verdict=verdict.use, because=verdict.reason, sources=verdict.readings
        )


@printed("idle", by="gpuops idle")
class IdleDocument(SiteDocument, frozen=True):
    """Whether desktops are used, by which source and which number."""

    policy: Annotated[str | None, "its name"]
    vms: Annotated[list[VmVerdictRecord], "in the order of pools and names"]


def idle_document(vms: Sequence[JudgedVm], inventory: Inventory, policy: str | None) -> IdleDocument:
    """Return the verdict on each VM, with the figure, age and weight of each source."""
    return IdleDocument.from_attributes(inventory, read_at=inventory.taken_at, policy=policy, vms=vms)


def _explanation(judged: JudgedVm) -> tuple[Shown, ...]:
    """Return the verdict on one VM, and a table of its sources."""
    verdict = judged.verdict
    pool = f" (pool {judged.pool})" if judged.pool is not None else ""
    heading = Text(f"{judged.vm.name}{pool}: ", "bold").append(verdict.use, _STYLES[verdict.use])
    heading.append(f"; {_reason(judged)}")
    return heading, table_of(
        verdict.readings,
        Column("source", lambda reading: f"{reading.source} {reading.metric}".rstrip()),
        Column("says", lambda reading: Text(reading.says, _STYLES[reading.says])),
        Column("value", lambda reading: _figure_with_unit(reading.value, reading.unit), right=True),
        Column("idle below", lambda reading: _figure_with_unit(reading.below, reading.unit), right=True),
        Column("age", _age_text),
        Column("weight", lambda reading: "veto" if reading.vetoes else "required" if reading.required else "can veto"),
        Column("because", lambda reading: reading.reason),
    )


def _reason(judged: JudgedVm) -> str:
    reason, mark_reason = judged.verdict.reason, judged.kept_by_marks
    return f"{reason}; no night takes it: {mark_reason}" if mark_reason is not None else reason


def _age_text(reading: SourceReading) -> str:
    return "-" if reading.age_s is None else format_limit(reading.age_s) if reading.age_s else "now"


def _figure_with_unit(figure: int | None, unit: str) -> str:
    return "-" if figure is None else f"{figure} {unit}".rstrip()


def _idle_time(seconds: float | None) -> str:
    return "now" if seconds is None else format_limit(seconds // 60 * 60) if seconds >= 60 else format_limit(seconds)


def broker_text(state: BrokerState) -> Iterator[Shown]:
    """Yield the broker and its user, a table of the pools, and why a rotation cannot gate some of them."""
    identity = state.identity
    yield Text(f"{identity.address}: {identity.product}", "bold")
    yield Text(f"user {identity.user}")
    if not state.pools:
        yield Text("this login sees no desktop pools")
        return
    yield _pools_table(state)
    for pool in (pool_state.pool for pool_state in state.pools):
        if pool.refusal is not None:
            yield Text(f"{pool.name}: no gate: {pool.refusal}", "yellow")
        elif pool.spare_machines:
            spares = count(pool.spare_machines, "spare machine")
            needed = f"a policy needs `floor: {pool.spare_machines}` or more"
            yield Text(f"{pool.name}: Horizon keeps {spares} powered on: {needed}", "yellow")
    if state.not_found:
        yield Text(f"{count(len(state.not_found), 'machine')} not found in this vCenter:", "yellow")
        yield from (Text(f"  {line}", "yellow") for line in state.reasons)
    if state.in_other_vcenters:
        yield Text(f"{count(state.in_other_vcenters, 'machine')} in other vCenters of the broker")
    if state.other_sessions:
        yield Text(f"{count(state.other_sessions, 'session')} on no machine of these pools", "yellow")


def _pools_table(broker_state: BrokerState) -> TextTable:
    return table_of(
        broker_state.pools,
        Column("pool", lambda state: state.pool.name),
        Column("kind", lambda state: state.pool.kind.value),
        Column("power policy", lambda state: state.pool.power_policy.value if state.pool.power_policy else "unknown"),
        Column("machines", lambda state: str(state.machines), right=True),
        Column("VMs", lambda state: str(state.vms), right=True),
        Column("maintenance", lambda state: str(state.in_maintenance), right=True),
        Column("sessions", lambda state: str(state.sessions), right=True),
        Column("connected", lambda state: str(state.connected), right=True),
        Column("gate", lambda state: _gate_of(state.pool)),
    )


def _gate_of(pool: DesktopPool) -> Text:
    if pool.refusal is not None:
        return Text("no", "yellow")
    return Text(f"floor {pool.spare_machines}", "yellow") if pool.spare_machines else Text("yes", "green")


class BrokerRecord(DocumentRecord, frozen=True):
    """A connection broker and its logged-in user."""

    address: str
    user: str
    product: Annotated[str, "name and version"]
    cluster: str | None

    @classmethod
    def made_of(cls, identity: BrokerIdentity) -> Self:
        return cls.from_attributes(identity, cluster=identity.cluster or None)


class MachineNotFoundRecord(DocumentRecord, frozen=True):
    """A machine of the broker that cannot be matched to one VM of this vCenter."""

    name: str
    reason: str


class BrokerPoolRecord(DocumentRecord, frozen=True):
    """A desktop pool."""

    id: str
    name: str
    kind: PoolKind
    power_policy: Annotated[DesktopPowerPolicy | None, "null = not known"]
    after_logoff: AfterLogoff | None
    enabled: bool | None
    spare_machines: Annotated[int | None, "unused machines that the broker keeps powered on; null = not known"]
    machines: int
    vms: Annotated[int, "machines whose VM is in this vCenter"]
    in_maintenance: Annotated[int, "machines in maintenance mode, which get no user"]
    sessions: int
    connected: Annotated[int, "sessions that are not known to be disconnected"]
    can_be_gated: Annotated[bool, "whether a rotation can keep users away from its machines"]
    refusal: Annotated[str | None, "why it cannot"]

    @classmethod
    def made_of(cls, state: PoolState) -> Self:
        return cls.from_attributes(state, state.pool, can_be_gated=state.pool.refusal is None)


@printed("broker-show", by="gpuops broker show")
class BrokerShowDocument(PrintedDocument, frozen=True):
    """Desktop pools of the connection broker, and what a rotation can gate."""

    broker: BrokerRecord
    pools: Annotated[list[BrokerPoolRecord], "by name"]
    unmatched_machines: Annotated[list[str], "names of machines that are not certainly a VM of this vCenter"]
    machines_not_found: Annotated[list[MachineNotFoundRecord], "the same machines, each with the reason"]
    machines_in_other_vcenters: Annotated[int, "machines that are certainly in another vCenter of the broker"]
    other_sessions: Annotated[int, "on no machine of these pools"]

    @classmethod
    def made_of(cls, state: BrokerState) -> Self:
        return cls.from_attributes(
            state,
            broker=state.identity,
            unmatched_machines=[name for name, _ in state.not_found],
            machines_not_found=[MachineNotFoundRecord(name, reason) for name, reason in state.not_found],
            machines_in_other_vcenters=state.in_other_vcenters,
        )
