"""Text and document of `gpuops change abandon`, and the lines of `status` about given up hosts and VMs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self

from gpuops.model.nights.journal import GivenUp, Thing
from gpuops.plan.core.abandonment import Abandonment, Missed
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, Ref, printed
from gpuops.report.layout import Shown, Text


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


def abandonment_text(abandonment: Abandonment) -> Shown:
    """Return what is given up, and the consequences."""
    if abandonment.already:
        outcome = "was given up before"
    else:
        outcome = "given up" if abandonment.applied else "would be given up"
    return (
        *(Text(f"  {line}") for line in abandonment.means),
        Text(f"{abandonment.name}: {outcome}", "bold"),
        *(Text(f"next: {line}", "yellow") for line in abandonment.left),
    )


class AbandonedThingRecord(DocumentRecord, frozen=True):
    """A host or VM."""

    kind: Thing
    ref: Ref
    uuid: Annotated[str | None, "of the host's hardware, or the VM's instance uuid"]
    name: str
    of: Annotated[str, "the change or the night that waited for it"]

    @classmethod
    def made_of(cls, record: GivenUp) -> Self:
        return cls.from_attributes(record, kind=record.thing)


@printed("abandon", by="gpuops change abandon and gpuops rotate abandon")
class AbandonDocument(PrintedDocument, frozen=True):
    """What a person gives up for good."""

    given_up: list[AbandonedThingRecord]
    means: Annotated[list[str], "what that means"]
    next: Annotated[list[str], "what remains to be done, in order"]
    already: Annotated[bool, "whether it was given up before"]
    applied: Annotated[bool, "whether it is written; false of a dry run"]


def abandonment_document(abandonment: Abandonment) -> AbandonDocument:
    """Return the abandonment as a document."""
    return AbandonDocument.from_attributes(abandonment, given_up=abandonment.things, next=abandonment.left)
