"""Text and document of `gpuops guest check`: each verdict with its next step. Text from guests is made harmless."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Self

from gpuops.model.guests.guest import GuestWay
from gpuops.plan.guest.question import GuestVerdict, GuestVerdicts, count_states
from gpuops.plan.guest.rows import GuestRow, GuestState
from gpuops.report.document import DocumentRecord, NamedRecord, VersionedSiteDocument, printed
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count, vcenter_heading

_STYLES: Final = {GuestState.PASS: "green", GuestState.FAIL: "bold red", GuestState.UNKNOWN: "yellow"}
_WAYS: Final = {GuestWay.TOOLS: "VMware Tools", GuestWay.SSH: "SSH"}
_WIDTH: Final = 9


def guest_check_text(verdicts: GuestVerdicts, way: GuestWay) -> Shown:
    """Return the rows of each guest, and one closing line."""
    return (
        vcenter_heading(verdicts.inventory, f"{count(len(verdicts.guests), 'guest')} by {_WAYS[way]}"),
        *(line for guest in verdicts.guests for line in _lines(guest)),
        Text(_summary(verdicts), "bold"),
    )


def _lines(guest: GuestVerdict) -> Iterator[Text]:
    yield Text(f"{guest.vm.name}: {'ready' if guest.ready else 'not ready'}", "bold")
    for row in guest.rows:
        yield from _row(row)


def _row(row: GuestRow) -> Iterator[Text]:
    yield Text(f"  {row.state:<{_WIDTH}}", _STYLES[row.state]).append(f"{row.check}: {row.says}")
    if row.next_move:
        yield Text(f"{'':<{_WIDTH + 2}}next: {row.next_move}", "dim")


def _summary(verdicts: GuestVerdicts) -> str:
    if not verdicts.guests:
        return "no guest was asked: the pool is empty"
    counts = count_states(verdicts)
    words = {GuestState.PASS: "ready", GuestState.FAIL: "not ready", GuestState.UNKNOWN: "not known to be ready"}
    parts = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    return f"{count(len(verdicts.guests), 'guest')}: {', '.join(parts)}"


class CheckedRowRecord(DocumentRecord, frozen=True):
    """One verdict on a guest."""

    check: Annotated[str, "what was looked at, such as driver, licence or the name of a framework"]
    state: GuestState
    says: Annotated[str, "why, with figures; may hold text from the guest"]
    next: Annotated[str, "the next step; empty if it passes"]

    @classmethod
    def made_of(cls, row: GuestRow) -> Self:
        return cls.from_attributes(row, next=row.next_move)


class CheckedGuestRecord(DocumentRecord, frozen=True):
    """One guest that was checked, or could not be."""

    vm: NamedRecord
    ready: Annotated[bool, "whether every row passes"]
    rows: list[CheckedRowRecord]


@printed("guest-check", by="gpuops guest check")
class GuestCheckDocument(VersionedSiteDocument, frozen=True):
    """Whether guests are ready for work on their GPUs."""

    via: GuestWay
    ready: Annotated[bool, "whether every row of every guest passes"]
    guests: Annotated[list[CheckedGuestRecord], "by name"]


def guest_check_document(verdicts: GuestVerdicts, way: GuestWay) -> GuestCheckDocument:
    """Return the verdicts as a document."""
    return GuestCheckDocument.from_attributes(
        verdicts, verdicts.inventory, read_at=verdicts.inventory.taken_at, via=way
    )
