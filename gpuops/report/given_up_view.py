"""Hosts and VMs that an admin gave up and that are not back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self

from gpuops.model.nights.history import Thing
from gpuops.plan.core.abandonment import Missed
from gpuops.report.document import DocumentRecord, Moment
from gpuops.report.layout import Text


def missed_lines(missed: Iterable[Missed]) -> list[Text]:
    """Return a line for each given up host or VM that is not back, and the next step below it."""
    lines = []
    for missed_thing in missed:
        record = missed_thing.given
        lines.append(Text("given up ", "yellow").append(f"{record.thing} {record.name} {missed_thing.since}"))
        lines.append(Text(f"         next: {missed_thing.move}", "dim"))
    return lines


class GivenUpRecord(DocumentRecord, frozen=True):
    """A host or VM that a person gave up and that is not back."""

    kind: Thing
    ref: Annotated[str, "managed object id, as it was then"]
    uuid: Annotated[str | None, "of the host's hardware, or the VM's instance uuid"]
    name: str
    of: Annotated[str, "the change or the night that waited for it"]
    since: Moment
    now: Annotated[str, "the state that it is in"]

    @classmethod
    def made_of(cls, missed: Missed) -> Self:
        return cls.from_attributes(missed.given, kind=missed.given.thing, since=missed.given.at, now=missed.now)
