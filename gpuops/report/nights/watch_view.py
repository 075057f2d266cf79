"""Text and document of one look of `rotate watch`: what it found and did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from gpuops.model.time_text import format_duration, format_zoned_minute
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import PowerOnVm, SuspendVm
from gpuops.plan.rotation.nights.spare import KeptState, StoppingMlVm
from gpuops.plan.rotation.nights.watch_look import PoolAhead, WatchReport
from gpuops.report.document import DocumentRecord, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, table_of
from gpuops.report.plan_json import OutcomeRecord, RejectionRecord, outcome_document
from gpuops.report.plan_text import STYLES, outcome_line
from gpuops.report.text import count


def look_text(report: WatchReport) -> Iterator[Shown]:
    """Yield the room kept for desktops, the forecast of each pool, and the VMs that a watch would change now."""
    look, names = report.look, report.before.vms
    yield Text(f"read {format_zoned_minute(report.before.taken_at)}, as if it had been calm for long enough", "dim")
    yield table_of(
        look.states,
        Column("cluster or host", lambda state: state.where),
        Column("profile", lambda state: state.key[0]),
        Column("free", lambda state: str(state.free), right=True),
        Column("kept", lambda state: str(state.kept), right=True),
        Column(
            "missing",
            lambda state: Text(str(state.missing), STYLES[Verdict.FAILED]) if state.missing else "-",
            right=True,
        ),
    )
    yield from map(_pool_line, look.ahead)
    for rejection in look.plan.rejections:
        yield Text(f"nothing starts: {rejection}", "yellow")
    for yielding_vm in look.gives.vms:
        yield Text(f"would make room: {_yield_reason(yielding_vm)}")
    for vm in look.back.desktops:
        yield Text(f"would come back to users: {vm.original.name}")
    for vm in look.back.stops:
        yield Text(f"would stop for them: {vm.original.name}")
    # a look that makes room or brings desktops back suspends and starts nothing
    for step in () if look.gives.vms or look.back.desktops else look.plan.steps:
        if isinstance(step, SuspendVm):
            yield Text(f"would be suspended: {names[step.vm].name}")
        if isinstance(step, PowerOnVm):
            host = report.before.hosts.get(step.host or "")
            yield Text(f"would start: {names[step.vm].name}" + (f" on {host.name}" if host else ""))
    for choice in look.waiting:
        yield Text(f"waits: {choice.subject}: {choice.reason}", "dim")
    yield Text(f"{count(len(look.running), 'ML VM')} of this policy run", "bold")


def _pool_line(pool: PoolAhead) -> Text:
    to_run = "no forecast: earlier weeks are not known" if pool.expected is None else f"{pool.expected} are to run"
    return Text(f"pool {pool.pool}: {count(pool.running, 'desktop')} run for users, {to_run}")


def _yield_reason(yielding_vm: StoppingMlVm) -> str:
    lost = "how much is lost is not known"
    if yielding_vm.lost_s is not None:
        lost = f"{format_duration(yielding_vm.lost_s)} of work are lost"
    return f"{yielding_vm.name}, so that {yielding_vm.for_key[0]} is free in {yielding_vm.where}; {lost}"


def watch_lines(report: WatchReport) -> Iterator[Text]:
    """Yield what one look of a watch changed, for a log; nothing if there was nothing to do."""
    look = report.look
    # after steps the states of all profiles, otherwise only of those that lack slots
    if report.outcomes or look.gives.still_missing:
        yield Text("; ".join(str(state) for state in look.states if state.missing or report.outcomes))
    for yielding_vm in look.gives.vms:
        yield Text(f"  makes room: {_yield_reason(yielding_vm)}")
    if look.gives.still_missing and not look.gives.vms:
        yield Text("  no other ML VM of this policy can make room", "yellow")
    for outcome in report.outcomes:
        yield Text("  ").append(outcome_line(outcome, report.before))
    # Refusals are shown only by a look that changed something: the following looks would repeat them in the log.
    if look.plan.rejections and report.outcomes:
        for rejection in look.plan.rejections:
            yield Text(f"  nothing starts: {rejection}", "yellow")


class KeptFreeRecord(DocumentRecord, frozen=True):
    """The vGPUs kept free for desktops of a profile, in a cluster or on a standalone host."""

    profile: str
    where: Annotated[str, "name of the cluster or host"]
    free: Annotated[int, "vGPUs that can surely start now"]
    kept: int
    missing: int

    @classmethod
    def made_of(cls, state: KeptState) -> Self:
        return cls.from_attributes(state, profile=state.key[0])


class PoolAheadRecord(DocumentRecord, frozen=True):
    """A pool whose desktops come back ahead of their users."""

    pool: Annotated[str, "its name"]
    running: Annotated[int, "desktops that run for users, in use or not"]
    to_run: Annotated[int | None, "by the forecast; null = there is no forecast"]


class GivesWayRecord(DocumentRecord, frozen=True):
    """An ML VM that stops to make room for desktops."""

    vm: Annotated[str, "its name"]
    lost_s: Annotated[float | None, "seconds of its work that are lost; null = not known"]
    profile: Annotated[str, "of which too few are free"]
    where: Annotated[str, "name of the cluster or host"]


class WaitingVmRecord(DocumentRecord, frozen=True):
    """An ML VM that does not start."""

    vm: Annotated[str, "its name"]
    reason: str


@printed("rotate-watch", by="gpuops rotate watch")
class RotateWatchDocument(SiteDocument, frozen=True):
    """One look of a watch, its plan, and the outcomes."""

    kept: list[KeptFreeRecord]
    pools: Annotated[list[PoolAheadRecord], "those whose `ready` follows a forecast"]
    running: Annotated[list[str], "names of the ML VMs of this policy that run"]
    gives_way: Annotated[list[GivesWayRecord], "ML VMs that stop so that enough is free"]
    back: Annotated[list[str], "names of the desktops that come back to users"]
    stops: Annotated[list[str], "names of the ML VMs that stop for these"]
    starts: Annotated[list[str], "names of the ML VMs that start"]
    rejections: Annotated[list[RejectionRecord], "why nothing starts at all"]
    waiting: Annotated[list[WaitingVmRecord], "queued ML VMs that do not start"]
    outcomes: Annotated[list[OutcomeRecord], "empty for a dry run"]


def look_document(report: WatchReport) -> RotateWatchDocument:
    """Return one look as a document."""
    look, vms = report.look, report.before.vms
    return RotateWatchDocument.from_attributes(
        vcenter=report.before.vcenter,
        read_at=report.before.taken_at,
        kept=look.states,
        pools=[PoolAheadRecord(pool.pool, pool.running, pool.expected) for pool in look.ahead],
        running=[vm.original.name for vm in look.running],
        gives_way=[GivesWayRecord(vm.name, vm.lost_s, vm.for_key[0], vm.where) for vm in look.gives.vms],
        back=[vm.original.name for vm in look.back.desktops],
        stops=[vm.original.name for vm in look.back.stops],
        starts=[vms[ref].name for ref in look.starts if ref in vms],
        waiting=[WaitingVmRecord(choice.subject, choice.reason) for choice in look.waiting],
        rejections=look.plan.rejections,
        outcomes=[outcome_document(outcome, report.before) for outcome in report.outcomes],
    )
