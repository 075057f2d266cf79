"""The list of every applied effect, in order; tests read from it what has happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from gpuops.sim.core.call import Call
from gpuops.sim.core.managed_object import ManagedObject


@dataclass(frozen=True, slots=True)
class Entry:
    """One applied effect: the user, the method and the object, the moment, and the values before and after."""

    sequence: int
    at: datetime
    user: str
    session: str
    operation_id: str
    method: str
    object_type: str
    moid: str
    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values; `at` in ISO 8601."""
        return {**asdict(self), "at": self.at.isoformat()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Entry:
        """The entry that `to_json` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        return cls(**{**values, "at": datetime.fromisoformat(values["at"])})


class Ledger:
    """Append-only; entries are numbered from 1."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def record(
        self,
        call: Call,
        entity: ManagedObject,
        *,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        method: str = "",
    ) -> Entry:
        """Add and return an entry: `call` changed `entity` from `before` to `after` (plain JSON values).

        `method` replaces the name of the call's method.
        """
        entry = Entry(
            sequence=len(self._entries) + 1,
            at=self._now(),
            user=call.user,
            session=call.session_key,
            operation_id=call.operation_id,
            method=method or call.method,
            object_type=entity.wsdl_name,
            moid=entity.moid,
            name=entity.display_name,
            before=dict(before),
            after=dict(after),
        )
        self._entries.append(entry)
        return entry

    def load(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Load the entries of an earlier run; new entries follow them.

        Raises ValueError, KeyError or TypeError for anything that `to_json` did not write.
        """
        entries = [Entry.from_json(values) for values in saved]
        if [entry.sequence for entry in entries] != list(range(1, len(entries) + 1)):
            raise ValueError("the entries of its ledger are not numbered 1, 2, 3 and so on")
        self._entries = entries

    def to_json(self, *, after_sequence: int = 0) -> list[dict[str, Any]]:
        """Entries later than `after_sequence`, oldest first."""
        return [entry.to_json() for entry in self._entries[after_sequence:]]
