"""What `gpuops size` prints: counts of sharers under each scheduler, what is recommended, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

from gpuops.advise.sizing.advice import GpuShare, SharersAdvice, SizedVm
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.plan.capacity.sizing import SizingAnswer, SizingSource
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

_MOST_VMS = 20
"""So many VMs have a row of their own."""
_A_WEEK = timedelta(days=7)


def sizing_text(found: SizingAnswer) -> Shown:
    """The counts as rows, then the VMs, the recommendation, and what it stands on."""
    parts: list[Shown] = [Text(_head(found), "bold"), _counts(found)]
    if found.sizing.vms:
        parts += [Text(), _vms(found)]
    parts += [*_recommended(found), *(Text(note, "dim") for note in _notes(found))]
    return parts


def _head(found: SizingAnswer) -> str:
    of = f" of {visible(found.profile)}" if found.profile is not None else ""
    match found.source:
        case SizingSource.NUMBERS:
            staggered = "" if found.overlap == 1.0 else f", each beside the next for {found.overlap:.0%} of its work"
            return f"VMs{of} that each keep a GPU busy {found.busy:.0%} of the time alone{staggered}"
        case SizingSource.WORKLOADS:
            return f"{count(len(found.sizing.vms), 'VM')}{of} by a file of workloads"
        case SizingSource.HISTORY:
            assert found.inventory is not None, "history is of a vCenter"
            read_at = f"read {found.inventory.taken_at:%Y-%m-%d %H:%M %Z}"
            vcenter = visible(found.inventory.api_version)
            return f"vCenter {vcenter}: {count(len(found.sizing.vms), 'VM')}{of} with a history, {read_at}"


def _counts(found: SizingAnswer) -> TextTable:
    headers = [word for policy in SchedulerPolicy for word in (policy.replace("-", " "), "done")]
    table = TextTable("on a GPU", *headers, right=range(len(headers)))
    for row in found.sizing.rows:
        cells: list[str | Text] = []
        for policy in SchedulerPolicy:
            share = row.shares[policy]
            cells += [_coloured(_slowdown(share), share, found), f"{share.throughput:.2f}"]
        table.add_row(str(row.sharers), *cells)
    return table


def _coloured(text: str, share: GpuShare, found: SizingAnswer) -> str | Text:
    allowed = found.sizing.limits.at_most
    return Text(text, "green") if allowed is not None and share.judged <= allowed else text


def _slowdown(share: GpuShare) -> str:
    range_ = "" if share.low is None else f" ({share.low:.2f} to {share.high:.2f})"
    return f"{share.slowdown:.2f}{range_}"


def _vms(found: SizingAnswer) -> TextTable:
    """The VMs that suffer or need most, each workload once."""
    table = TextTable(
        "VM",
        "busy alone",
        "hours",
        *(f"{policy.replace('-', ' ')}, {found.sizing.vms_at} on a GPU" for policy in SchedulerPolicy),
        "may share",
        right=(1, 2, 3, 4, 5),
        whole=(0,),
    )
    for vm, hours in _listed(found)[:_MOST_VMS]:
        table.add_row(
            visible(vm.name),
            f"{vm.busy:.0%}",
            "-" if hours is None else f"{hours:.0f}",
            *(f"{vm.slowdown[policy]:.2f}" for policy in SchedulerPolicy),
            "yes" if vm.shares else Text("no", "yellow"),
        )
    return table


def _listed(found: SizingAnswer) -> list[tuple[SizedVm, float | None]]:
    """Each VM with its hours of history, the busiest first; of equal ones of a workload one."""
    hours = found.history.hours if found.history is not None else (None,) * len(found.sizing.vms)
    each = sorted(zip(found.sizing.vms, hours, strict=True), key=lambda pair: (-pair[0].busy, pair[0].name))
    if found.source is SizingSource.HISTORY:
        return each
    return list({(vm.name, vm.shares): (vm, hours) for vm, hours in each}.values())


def _recommended(found: SizingAnswer) -> Iterator[Text]:
    allowed, advice = found.sizing.limits.at_most, found.sizing.advice
    if allowed is None:
        yield Text("say --at-most 1.2, and the most VMs are recommended by which none takes longer", "dim")
        return
    if advice is None:
        yield Text(f"recommended: none; not even one VM stays within {allowed:g}", "bold yellow")
        return
    vms = "1 VM" if advice.sharers == 1 else f"up to {advice.sharers} VMs"
    policy = advice.policy.replace("-", " ")
    said = f"recommended: {vms} on a GPU, {policy}: {_slowdown(advice.share)}, {allowed:g} is allowed"
    if found.sizing.vms:
        said += f"; {count(advice.gpus, 'GPU')} for {count(len(found.sizing.vms), 'VM')}"
    yield Text(said, "bold green")
    apart = _apart(found, advice)
    if apart:
        yield Text(f"should not share: {apart}", "yellow")


def _apart(found: SizingAnswer, advice: SharersAdvice) -> str:
    if advice.sharers == 1 and len(found.sizing.vms) > 1:
        return "any of them: two on a GPU take longer than is allowed"
    names = Counter(visible(vm.name) for vm in found.sizing.vms if not vm.shares)
    said = [name if times == 1 else f"{times} x {name}" for name, times in names.items()]
    return ", ".join(said[:5]) + (f" and {len(said) - 5} more" if len(said) > 5 else "")


def _notes(found: SizingAnswer) -> Iterator[str]:
    yield "slowdown: times as long as alone; done: the work of all on the GPU, what each does alone = 1"
    if any(share.low is not None for row in found.sizing.rows for share in row.shares.values()):
        yield "in brackets: a tenth of what VMs had is below, a tenth above; --at-most holds for that, and for each VM"
    history = found.history
    if history is not None:
        least, most = min(history.hours), max(history.hours)
        hours = f"{most:.0f} h" if f"{least:.0f}" == f"{most:.0f}" else f"{least:.0f} to {most:.0f} h"
        yield f"by {hours} of history of {count(len(history.hours), 'VM')} since {history.since:%Y-%m-%d %H:%M %Z}"
        if found.inventory is not None and found.inventory.taken_at - history.since < _A_WEEK:
            yield "that is less than a week: of other days, which may be busier, nothing is known"
        if history.full:
            yield f"GPUs that VMs share were full in {history.full:.0%} of the time: more than is known may be wanted"
    if found.pairs is not None:
        error = (
            "too few to say by how much" if found.pairs_error is None else f"by {found.pairs_error:.2f} of its speed"
        )
        yield f"corrected by {count(found.pairs_observed, 'observed pair')}; a VM beside another one is off {error}"
    if found.source is not SizingSource.HISTORY:
        yield "busy shares as they were stated, not measured; the model is within 15 % of published measurements"
    for name, reason in list((found.left_out or {}).items())[:_MOST_VMS]:
        yield f"left out: {visible(name)}: {reason}"


def sizing_document(found: SizingAnswer) -> Document:
    """The same for programs. null = not said, or not known."""
    sizing, history, pairs = found.sizing, found.history, found.pairs
    hours = history.hours if history is not None else (None,) * len(sizing.vms)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "size",
        "source": found.source.value,
        "vcenter": found.inventory.vcenter if found.inventory is not None else None,
        "read_at": found.inventory.taken_at.isoformat() if found.inventory is not None else None,
        "profile": found.profile,
        "most_per_gpu": sizing.limits.slots,
        "busy": found.busy,
        "overlap": found.overlap,
        "at_most": sizing.limits.at_most,
        "guaranteed": sizing.limits.guaranteed,
        "sizes": [
            {
                "sharers": row.sharers,
                "schedulers": {policy.value: _share(share) for policy, share in row.shares.items()},
            }
            for row in sizing.rows
        ],
        "recommended": _advice(sizing.advice),
        "vms_at": sizing.vms_at if sizing.vms else None,
        "vms": [
            {
                "name": vm.name,
                "busy": vm.busy,
                "hours": known,
                "may_share": vm.shares,
                "slowdown": {policy.value: each for policy, each in vm.slowdown.items()},
            }
            for vm, known in zip(sizing.vms, hours, strict=True)
        ],
        "history": {
            "since": history.since.isoformat(),
            "hours_least": min(history.hours),
            "hours_most": max(history.hours),
            "full": history.full,
        }
        if history is not None
        else None,
        "pairs": {
            "observed": found.pairs_observed,
            "mean_error": found.pairs_error,
            "sensitivity": dict(pairs.sensitivity),
            "pressure": dict(pairs.pressure),
        }
        if pairs is not None
        else None,
        "left_out": dict(found.left_out or {}),
    }


def _share(share: GpuShare) -> Document:
    return {
        "slowdown": share.slowdown,
        "low": share.low,
        "high": share.high,
        "worst": share.worst,
        "throughput": share.throughput,
    }


def _advice(advice: SharersAdvice | None) -> Document | None:
    if advice is None:
        return None
    return {
        "sharers": advice.sharers,
        "scheduler": advice.policy.value,
        "gpus": advice.gpus,
        **_share(advice.share),
    }
