"""Originals: VMs as they were before a night touched them; what the morning must restore."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from gpuops.execute.journal import Journal
from gpuops.model.rotation import Original

LATE: Final = timedelta(minutes=10)
"""For so long after its reply and its task were lost a change may still come; our own figure, vCenter promises none."""


class Originals:
    """The originals in a journal, of its vCenter."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def save(self, originals: Sequence[Original]) -> None:
        """Keeps what the morning must restore. What is already saved of this night stays as it was saved."""
        self._journal.save(
            [
                {
                    "night": original.night,
                    "vm": original.vm,
                    "role": str(original.role),
                    "uuid": original.uuid,
                    "name": original.name,
                    "host": original.host,
                    "profiles": list(original.profiles),
                    **({"drs": str(original.drs)} if original.drs is not None else {}),
                }
                for original in originals
            ]
        )

    def returned(self, original: Original) -> None:
        """The VM was seen as it was before the night."""
        self._journal.returned(original.night, original.vm)

    def all(self, night: str | None = None) -> tuple[Original, ...]:
        """What nights have saved and not seen returned; with `night`, that night's returned ones too."""
        book, now = self._journal.book, self._journal.clock()
        found = [
            Original(
                night=saved.night,
                role=saved.role,
                vm=saved.vm,
                uuid=saved.uuid,
                name=saved.name,
                host=saved.host,
                profiles=saved.profiles,
                # An effect that failed for certain did not take the VM; any other intent may have.
                taken=book.takes.get(key, 0) > 0,
                returned=saved.returned is not None,
                drs=saved.drs,
                unsure=key in book.lost and now - book.lost[key] < LATE,
            )
            for key, saved in book.originals.items()
            if saved.returned is None or saved.night == night
        ]
        return tuple(sorted(found, key=lambda original: (original.night, original.name)))
