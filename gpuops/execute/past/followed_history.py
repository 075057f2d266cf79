"""Keep the nights and changes of one vCenter for repeated reads: each read takes only new records."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from gpuops.errors import StateDamaged
from gpuops.execute.journal.stores import FILE_NAME, look_into_store
from gpuops.execute.past.past_events import PastEventsReader
from gpuops.model.nights.history import PastEvents


class FollowedHistory:
    """The events of one vCenter in the journal of this directory, or in the database at the URL.

    Only `events` changes it.
    """

    def __init__(self, state_dir: Path, url: str, vcenter: str) -> None:
        self._state_dir, self._url, self._vcenter = state_dir, url, vcenter
        self._name = "the database of the journal" if url else str(state_dir / FILE_NAME)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._reader = PastEventsReader(self._vcenter)
        self._seq = 0
        self._events: PastEvents | None = None

    def events(self) -> PastEvents | None:
        """Return all events so far, in the order of the records; None if this vCenter has no records.

        Raises StateDamaged for a journal that cannot be read, that another program changed, or that was replaced; the
        next call then begins at the first record. Raises UsageError for a wrong URL.
        """
        try:
            return self._read_new_records()
        except BaseException:
            self._begin_anew()
            raise

    def _read_new_records(self) -> PastEvents | None:
        store = look_into_store(self._state_dir, self._url, self._vcenter)
        if store is None:
            self._begin_anew()
            return None
        with closing(store):
            records = store.read(self._seq)
        try:
            for record in records:
                self._reader.take(record)
                self._seq, self._events = record.seq, None
        except (KeyError, TypeError, ValueError) as error:
            raise StateDamaged(
                f"the journal holds a record that this version cannot read: {error!r}",
                hint="gpuops rotate audit verify names it; use the gpuops that wrote it",
            ) from error
        if self._events is None and self._seq:
            self._events = PastEvents(self._name, self._reader.nights(), self._reader.changes())
        return self._events
