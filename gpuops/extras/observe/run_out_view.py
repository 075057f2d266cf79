"""Text and document of `gpuops capacity --forecast`: when each profile runs out, and how certain that is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Self

from gpuops.extras.observe.run_out import FEWEST_DAYS, HORIZON, TESTED_AHEAD, RunOut
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import DocumentRecord, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, table_of
from gpuops.report.text import count, optional_figure, vcenter_heading


def run_out_text(profiles: Sequence[RunOut], inventory: Inventory) -> Shown:
    """Return a row for each profile, the one that runs out first at the top."""
    head = vcenter_heading(inventory, "when vGPU profiles run out")
    if not profiles:
        return (head, Text("no VM has a vGPU, and no history has one"))
    table = table_of(
        profiles,
        Column("profile", lambda profile: profile.profile, whole=True),
        Column("run now", lambda profile: str(profile.running), right=True),
        Column("fit", lambda profile: str(profile.fit), right=True),
        Column("most in 7 days", lambda profile: optional_figure(profile.most_of_week), right=True),
        Column("growth a week", lambda profile: optional_figure(profile.growth_per_week, "+.1f"), right=True),
        Column("runs out", _run_out_day),
        Column("earliest", lambda profile: optional_figure(profile.not_before, unknown="-")),
        Column("latest", lambda profile: optional_figure(profile.not_after, unknown="-")),
        Column("off by", lambda profile: optional_figure(profile.error, ".1f"), right=True),
        Column("naive", lambda profile: optional_figure(profile.naive_error, ".1f"), right=True),
        Column("days", lambda profile: str(profile.days), right=True),
    )
    return (head, table, *_notes(profiles))


def _notes(profiles: Sequence[RunOut]) -> list[Text]:
    tested = f"{TESTED_AHEAD.days} days ahead, on days of the past"
    notes = [
        "each profile for itself: profiles share the same GPUs",
        f"off by: vGPUs, {tested}; naive: the same, by the same weekday two weeks before alone",
    ]
    if any(profile.days < FEWEST_DAYS for profile in profiles):
        notes.append(f"`?`: {count(FEWEST_DAYS, 'day')} of `gpuops observe` are needed (gpuops help observe)")
    return [Text(note, "dim") for note in notes]


def _run_out_day(profile: RunOut) -> str | Text:
    if profile.runs_out is not None:
        return Text(f"{profile.runs_out}", "bold yellow")
    return "?" if profile.growth_per_week is None else f"not in {HORIZON.days} days"


class ProfileForecastRecord(DocumentRecord, frozen=True):
    """The forecast of one vGPU profile by itself; profiles share the same GPUs."""

    profile: str
    running: Annotated[int, "vGPUs of it that run now"]
    fit: Annotated[int, "how many more fit at least"]
    days_known: Annotated[int, "of history"]
    most_in_7_days: Annotated[int | None, "null = not known"]
    growth_per_week: Annotated[float | None, "null = there is too little history"]
    runs_out: Annotated[
        str | None, "the first day on which all slots are expected to be taken; null = none in the horizon"
    ]
    not_before: Annotated[str | None, "the same, if use is above what is expected by the error"]
    not_after: Annotated[str | None, "the same, if it is below"]
    error: Annotated[float | None, "vGPUs that forecasts of the past were off by in the mean"]
    naive_error: Annotated[float | None, "the same, by the same weekday two weeks before alone"]
    tested_days: Annotated[int, "on so many days"]

    @classmethod
    def made_of(cls, row: RunOut) -> Self:
        return cls.from_attributes(
            row,
            days_known=row.days,
            most_in_7_days=row.most_of_week,
            runs_out=_iso(row.runs_out),
            not_before=_iso(row.not_before),
            not_after=_iso(row.not_after),
        )


@printed("capacity-forecast", by="gpuops capacity --forecast")
class CapacityForecastDocument(SiteDocument, frozen=True):
    """When each vGPU profile runs out, by the history of gpuops observe."""

    horizon_days: Annotated[int, "profiles that last longer have no date"]
    tested_ahead_days: Annotated[int, "the errors are those of forecasts so far ahead"]
    profiles: Annotated[list[ProfileForecastRecord], "what runs out first comes first"]


def run_out_document(profiles: Sequence[RunOut], inventory: Inventory) -> CapacityForecastDocument:
    """Return the forecasts as a document. null = not known, or not within the horizon."""
    return CapacityForecastDocument.from_attributes(
        inventory,
        read_at=inventory.taken_at,
        horizon_days=HORIZON.days,
        tested_ahead_days=TESTED_AHEAD.days,
        profiles=profiles,
    )


def _iso(day: date | None) -> str | None:
    return day.isoformat() if day is not None else None


def run_out_views(profiles: Sequence[RunOut], inventory: Inventory) -> tuple[Shown, CapacityForecastDocument]:
    """Return when profiles run out as text and as a document."""
    return run_out_text(profiles, inventory), run_out_document(profiles, inventory)
