"""Keep the nights in a journal that a run has open, for repeated reads: each read takes only new records."""

from __future__ import annotations

from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal
from gpuops.execute.past.past_events import PastEventsReader
from gpuops.model.nights.history import PastNight


class FollowedNights:
    """The past nights of one vCenter, from its growing journal. Only `nights` changes it."""

    def __init__(self) -> None:
        self._reader: PastEventsReader | None = None
        self._seq = 0

    def nights(self, journal: Journal | None) -> tuple[PastNight, ...]:
        """Return the nights recorded so far; empty without a journal.

        Raises StateDamaged for a journal that cannot be read; the next call then begins at the first record.
        """
        if journal is None:
            return ()
        if journal.state.seq < self._seq:  # the journal was replaced by another one
            self._reader, self._seq = None, 0
        reader, self._reader = self._reader or PastEventsReader(journal.vcenter), None
        try:
            for record in journal.records(self._seq):
                reader.take(record)
                self._seq = record.seq
        except (KeyError, TypeError, ValueError) as error:
            self._seq = 0
            raise StateDamaged(
                f"the journal holds a record that this version cannot read: {error!r}",
                hint="gpuops rotate audit verify names it; use the gpuops that wrote it",
            ) from error
        except StateDamaged:
            self._seq = 0
            raise
        self._reader = reader
        return reader.nights()
