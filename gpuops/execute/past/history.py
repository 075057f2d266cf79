"""Read the nights and changes in a journal, newest first, or one night of it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.journal.every_record import OpenedJournal, opened_journal
from gpuops.execute.past.past_events import PastEventsReader, read_events
from gpuops.model.nights.history import EventKind, PastEvents


def history(
    state_dir: Path,
    url: str = "",
    *,
    since: datetime | None = None,
    kind: EventKind | None = None,
    limit: int | None = None,
    vcenter: str | None = None,
) -> PastEvents:
    """Return the events of this kind that began after `since`, at most `limit` of each kind. Sends no request.

    `vcenter`: instance uuid of the vCenter whose events are returned; None = all vCenters in the journal.

    Raises StateDamaged for a journal that cannot be read, or that another program changed.
    """
    with opened_journal(state_dir, url) as journal:
        readers = [
            _read(journal, listed_vcenter) for listed_vcenter in journal.vcenters if vcenter in (None, listed_vcenter)
        ]
        events = PastEvents(
            journal.name,
            tuple(night for reader in readers for night in reader.nights()),
            tuple(change for reader in readers for change in reader.changes()),
        )
    return events.only(since=since, kind=kind, limit=limit)


def past_night(state_dir: Path, night: str, url: str = "") -> PastEvents:
    """Return the nights of this name, one for each vCenter that has one. Raises UsageError if there is none."""
    events = history(state_dir, url, kind=EventKind.NIGHT)
    if not events.nights:
        raise UsageError(
            f"no night {night!r}: nothing was recorded in {events.journal} yet", hint="gpuops history lists the nights"
        )
    nights = tuple(night_event for night_event in events.nights if night_event.id == night)
    if not nights:
        raise UsageError(f"no night {night!r} in the journal {events.journal}", hint="gpuops history lists the nights")
    return PastEvents(events.journal, nights)


def _read(journal: OpenedJournal, vcenter: str) -> PastEventsReader:
    try:
        return read_events(vcenter, journal.records(vcenter))
    except (KeyError, TypeError, ValueError) as error:
        raise StateDamaged(
            f"the journal {journal.name} holds a record that this version cannot read: {error!r}",
            hint="gpuops rotate audit verify names it; use the gpuops that wrote it",
        ) from error
