"""What `gpuops idle` prints: the verdict on each VM, and of one what every source says. No view names a user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gpuops.advise.evidence import SourceReading, Use, told
from gpuops.advise.idle import JudgedVm, verdicts_without_sessions
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

_STYLES: Final = {Use.IDLE: "green", Use.BUSY: "yellow", Use.UNKNOWN: "dim"}


def idle_text(judged: Sequence[JudgedVm], inventory: Inventory, *, explain: bool) -> Shown:
    """A row for each VM; with `explain` one for each source of each VM."""
    heading = Text(f"{count(len(judged), 'VM')}, read {inventory.taken_at:%Y-%m-%d %H:%M %Z}", "bold")
    if explain:
        return (heading, *(line for each in judged for line in _explained(each)))
    table = TextTable("VM", "pool", "verdict", "for", "by", "because", whole=(0,))
    for each in judged:
        verdict = each.verdict
        table.add_row(
            visible(each.vm.name),
            visible(each.pool or "-"),
            Text(verdict.use, _STYLES[verdict.use]),
            _for(verdict.idle_for_s) if verdict.use is Use.IDLE else "-",
            verdict.decided_by or "all",
            visible(_because(each)),
        )
    numbers = Counter(each.verdict.use for each in judged)
    counts = Text(", ".join(f"{numbers[use]} {use}" for use in Use), "bold")
    return (heading, table, counts, *_worth(judged))


def _worth(judged: Sequence[JudgedVm]) -> Iterator[Shown]:
    """Yield a warning with the error rate of idle verdicts that require no session source."""
    uncertain = verdicts_without_sessions(judged)
    if uncertain.count:
        share = "one in six" if uncertain.are_all_long else "one in two"
        yield Text(
            f"no session source is required of {uncertain.count} idle: where people read, about {share} is in use "
            "(gpuops help evidence)"
        )


def idle_document(judged: Sequence[JudgedVm], inventory: Inventory, policy: str | None) -> Document:
    """Each VM's verdict, and each source with its number, its age and whether it vetoes."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "idle",
        "vcenter": inventory.vcenter,
        "read_at": inventory.taken_at.isoformat(),
        "policy": policy,
        "vms": [
            {
                "ref": each.vm.ref,
                "name": each.vm.name,
                "pool": each.pool,
                "verdict": each.verdict.use.value,
                "because": each.verdict.reason,
                "kept_by_marks": each.kept_by_marks,
                "decided_by": each.verdict.decided_by,
                "idle_for_s": each.verdict.idle_for_s,
                "sources": [_source(reading) for reading in each.verdict.readings],
            }
            for each in judged
        ],
    }


def _source(reading: SourceReading) -> Document:
    return {
        "source": reading.source.value,
        "metric": reading.metric,
        "says": reading.says.value,
        "required": reading.required,
        "veto": reading.vetoes,
        "value": reading.value,
        "unit": reading.unit,
        "below": reading.below,
        "disconnected_s": reading.disconnected_s,
        "age_s": reading.age_s,
        "because": reading.reason,
    }


def _explained(judged: JudgedVm) -> tuple[Shown, ...]:
    verdict = judged.verdict
    pool = f" (pool {visible(judged.pool)})" if judged.pool is not None else ""
    head = Text(f"{visible(judged.vm.name)}{pool}: ", "bold").append(verdict.use, _STYLES[verdict.use])
    head.append(f"; {visible(_because(judged))}")
    table = TextTable("source", "says", "value", "idle below", "age", "weight", "because", right=(2, 3))
    for each in verdict.readings:
        table.add_row(
            f"{each.source} {each.metric}".rstrip(),
            Text(each.says, _STYLES[each.says]),
            _number(each.value, each.unit),
            _number(each.below, each.unit),
            "-" if each.age_s is None else told(each.age_s) if each.age_s else "now",
            "veto" if each.vetoes else "required" if each.required else "can veto",
            visible(each.reason),
        )
    return head, table


def _because(judged: JudgedVm) -> str:
    reason, kept = judged.verdict.reason, judged.kept_by_marks
    return f"{reason}; no night takes it: {kept}" if kept is not None else reason


def _number(value: int | None, unit: str) -> str:
    return "-" if value is None else f"{value} {unit}".rstrip()


def _for(seconds: float | None) -> str:
    return "now" if seconds is None else told(seconds // 60 * 60) if seconds >= 60 else told(seconds)
