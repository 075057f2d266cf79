"""What was measured in one look, and what a store of measurements holds, as text and document."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from gpuops.model.measurements.measurement import Cycle, Span, Stored, StoredTier, StoredVcenter
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text
from gpuops.report.text import visible

_GAPS_SHOWN = 10


def cycle_text(cycle: Cycle) -> Shown:
    """One line of a look; a second one where something was filled."""
    if cycle.until is None or cycle.begin is None:
        return Text("nothing to do: the last look was less than five minutes ago", "bold")
    lines = [
        Text(
            f"measured {_span(Span(cycle.begin, cycle.until))}: {cycle.vms_measured} of {cycle.vms} VMs, "
            f"{cycle.hosts_measured} of {cycle.hosts} hosts, {cycle.calls} calls"
        )
    ]
    if cycle.vms_gpu_unknown:
        lines.append(Text(f"use of the GPU is unknown, not zero: {cycle.vms_gpu_unknown} VMs with vGPUs", "yellow"))
    if cycle.hosts_entered is not None:
        lines.append(Text(f"the hosts' own nvidia-smi: {cycle.hosts_entered} of {cycle.hosts} hosts"))
    if cycle.filled is not None:
        lines.append(Text(f"asked of vCenter's own five-minute averages: {_span(cycle.filled)}"))
    return tuple(lines)


def cycle_document(cycle: Cycle) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "observe",
        "vcenter": cycle.vcenter,
        "from": _moment(cycle.begin),
        "until": _moment(cycle.until),
        "filled": _span_values(cycle.filled) if cycle.filled is not None else None,
        "vms": cycle.vms,
        "vms_measured": cycle.vms_measured,
        "vms_gpu_unknown": cycle.vms_gpu_unknown,
        "hosts": cycle.hosts,
        "hosts_measured": cycle.hosts_measured,
        "calls": cycle.calls,
        "hosts_entered": cycle.hosts_entered,
    }


def stored_text(stored: Stored) -> Shown:
    """What is stored, vCenter by vCenter."""
    if not stored.vcenters:
        return (
            Text(f"nothing was measured yet in {visible(stored.store)}", "bold"),
            Text("next: gpuops observe --once --vcenter NAME"),
        )
    lines = [Text(visible(stored.store), "bold")]
    for each in stored.vcenters:
        lines += _vcenter_lines(each)
    return tuple(lines)


def stored_document(stored: Stored) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "observe-status",
        "store": stored.store,
        "vcenters": [
            {
                "vcenter": each.vcenter,
                "since": _moment(each.observed[0].begin) if each.observed else None,
                "until": _moment(each.observed[-1].until) if each.observed else None,
                "gaps": [_span_values(gap) for gap in _gaps(each)],
                "tiers": [_tier_values(tier) for tier in each.tiers],
            }
            for each in stored.vcenters
        ],
    }


def _vcenter_lines(found: StoredVcenter) -> Iterator[Text]:
    yield Text("")
    yield Text(f"vCenter {visible(found.vcenter)}", "bold")
    if found.observed:
        yield Text(f"  observed        {_span(Span(found.observed[0].begin, found.observed[-1].until))}")
    for tier in found.tiers:
        size = f"{tier.stored_bytes / 1_000_000:.1f} MB"
        since = f", since {tier.since:%Y-%m-%d %H:%M}" if tier.since is not None else ""
        yield Text(f"  steps of {_step(tier.step):<6} {tier.entities} VMs and hosts, {size}{since}")
    gaps = list(_gaps(found))
    for gap in gaps[-_GAPS_SHOWN:]:
        yield Text(f"  not observed    {_span(gap)}", "yellow")
    if len(gaps) > _GAPS_SHOWN:
        yield Text(f"  and {len(gaps) - _GAPS_SHOWN} older gaps", "yellow")


def _gaps(found: StoredVcenter) -> Iterator[Span]:
    return (Span(one.until, other.begin) for one, other in pairwise(found.observed))


def _step(step: timedelta) -> str:
    return "1 h" if step >= timedelta(hours=1) else f"{step // timedelta(minutes=1)} min"


def _span(span: Span) -> str:
    return f"{span.begin:%Y-%m-%d %H:%M} to {span.until:%Y-%m-%d %H:%M} UTC"


def _span_values(span: Span) -> dict[str, Any]:
    return {"from": span.begin.isoformat(), "until": span.until.isoformat()}


def _tier_values(tier: StoredTier) -> dict[str, Any]:
    return {
        "step_s": int(tier.step.total_seconds()),
        "entities": tier.entities,
        "blocks": tier.blocks,
        "bytes": tier.stored_bytes,
        "since": _moment(tier.since),
    }


def _moment(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None
