"""What `gpuops capacity --forecast` prints: profile by profile, when its slots run out and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from gpuops.advise.run_out import FEWEST_DAYS, HORIZON, TESTED_AHEAD, RunOut
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible


def run_out_text(found: Sequence[RunOut], inventory: Inventory) -> Shown:
    """A row for each profile, the one that runs out first at the top."""
    read_at = f"read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    head = f"vCenter {visible(inventory.api_version)}: when vGPU profiles run out, {read_at}"
    if not found:
        return (Text(head, "bold"), Text("no VM has a vGPU, and no history has one"))
    table = TextTable(
        "profile",
        "run now",
        "fit",
        "most in 7 days",
        "growth a week",
        "runs out",
        "earliest",
        "latest",
        "off by",
        "naive",
        "days",
        right=(1, 2, 3, 4, 8, 9, 10),
        whole=(0,),
    )
    for each in found:
        table.add_row(
            visible(each.profile),
            str(each.running),
            str(each.fit),
            _number(each.most_of_week),
            "?" if each.growth_per_week is None else f"{each.growth_per_week:+.1f}",
            _when(each),
            _day(each.not_before),
            _day(each.not_after),
            "?" if each.error is None else f"{each.error:.1f}",
            "?" if each.naive_error is None else f"{each.naive_error:.1f}",
            str(each.days),
        )
    return (Text(head, "bold"), table, *_notes(found))


def _notes(found: Sequence[RunOut]) -> list[Text]:
    tested = f"{TESTED_AHEAD.days} days ahead, on days of the past"
    notes = [
        "each profile for itself: profiles share the same GPUs",
        f"off by: vGPUs, {tested}; naive: the same, by the same weekday two weeks before alone",
    ]
    if any(each.days < FEWEST_DAYS for each in found):
        notes.append(f"`?`: {count(FEWEST_DAYS, 'day')} of `gpuops observe` are needed (gpuops help measurements)")
    return [Text(note, "dim") for note in notes]


def _when(each: RunOut) -> str | Text:
    if each.runs_out is not None:
        return Text(f"{each.runs_out}", "bold yellow")
    return "?" if each.growth_per_week is None else f"not in {HORIZON.days} days"


def _day(day: date | None) -> str:
    return "-" if day is None else f"{day}"


def _number(figure: int | None) -> str:
    return "?" if figure is None else str(figure)


def run_out_document(found: Sequence[RunOut], inventory: Inventory) -> Document:
    """The same for programs. null = not known, or not within the horizon."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "capacity-forecast",
        "vcenter": inventory.vcenter,
        "read_at": inventory.taken_at.isoformat(),
        "horizon_days": HORIZON.days,
        "tested_ahead_days": TESTED_AHEAD.days,
        "profiles": [
            {
                "profile": each.profile,
                "running": each.running,
                "fit": each.fit,
                "days_known": each.days,
                "most_in_7_days": each.most_of_week,
                "growth_per_week": each.growth_per_week,
                "runs_out": _iso(each.runs_out),
                "not_before": _iso(each.not_before),
                "not_after": _iso(each.not_after),
                "error": each.error,
                "naive_error": each.naive_error,
                "tested_days": each.tested_days,
            }
            for each in found
        ],
    }


def _iso(day: date | None) -> str | None:
    return day.isoformat() if day is not None else None
