"""The nights and changes in a journal, newest first, or one night of it."""

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
    """What began since then, of this kind alone, so many of each kind at the most. Asks no vCenter.

    `vcenter` is the instance uuid of the one whose events are meant; None = all that the journal knows.

    Raises StateDamaged for a journal that cannot be read, or that was changed by something else than gpuops.
    """
    with opened_journal(state_dir, url) as journal:
        readers = [_read(journal, each) for each in journal.vcenters if vcenter in (None, each)]
        events = PastEvents(
            journal.name,
            tuple(night for reader in readers for night in reader.nights()),
            tuple(change for reader in readers for change in reader.changes()),
        )
    return events.only(since=since, kind=kind, limit=limit)


def past_night(state_dir: Path, night: str, url: str = "") -> PastEvents:
    """The night of this name; several where nights of several vCenters have it. Raises UsageError for none."""
    found = history(state_dir, url, kind=EventKind.NIGHT)
    if not found.nights:
        raise UsageError(
            f"no night {night!r}: nothing was recorded in {found.journal} yet", hint="gpuops history lists the nights"
        )
    nights = tuple(each for each in found.nights if each.id == night)
    if not nights:
        raise UsageError(f"no night {night!r} in the journal {found.journal}", hint="gpuops history lists the nights")
    return PastEvents(found.journal, nights)


def _read(journal: OpenedJournal, vcenter: str) -> PastEventsReader:
    try:
        return read_events(vcenter, journal.records(vcenter))
    except (KeyError, TypeError, ValueError) as error:
        raise StateDamaged(
            f"the journal {journal.name} holds a record that this version cannot read: {error!r}",
            hint="gpuops rotate audit verify names it; use the gpuops that wrote it",
        ) from error
