"""Text and document of `gpuops guest check`: each verdict with its next step. Text from guests is made harmless."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Self

from gpuops.model.guests.guest import GuestWay
from gpuops.plan.guest.question import GuestVerdicts, count_states
from gpuops.plan.guest.rows import GuestRow, GuestState
from gpuops.report.document import DocumentRecord, NamedRecord, VersionedSiteDocument, printed
from gpuops.report.layout import Text
from gpuops.report.text import count, vcenter_heading

_STYLES: Final = {GuestState.PASS: "green", GuestState.FAIL: "bold red", GuestState.UNKNOWN: "yellow"}
_WAYS: Final = {GuestWay.TOOLS: "VMware Tools", GuestWay.SSH: "SSH"}
_WIDTH: Final = 9


def guest_check_text(verdicts: GuestVerdicts, way: GuestWay) -> Iterator[Text]:
    """Yield the verdicts on each guest, with next steps, and the number of guests that are ready."""
    guest_count = count(len(verdicts.guests), "guest")
    yield vcenter_heading(verdicts.inventory, f"{guest_count} by {_WAYS[way]}")
    for guest in verdicts.guests:
        yield Text(f"{guest.vm.name}: {'ready' if guest.ready else 'not ready'}", "bold")
        for row in guest.rows:
            yield Text(f"  {row.state:<{_WIDTH}}", _STYLES[row.state]).append(f"{row.check}: {row.says}")
            if row.next_move:
                yield Text(f"{'':<{_WIDTH + 2}}next: {row.next_move}", "dim")
    if not verdicts.guests:
        yield Text("no guest was asked: the pool is empty", "bold")
        return
    counts = count_states(verdicts)
    words = {GuestState.PASS: "ready", GuestState.FAIL: "not ready", GuestState.UNKNOWN: "not known to be ready"}
    parts = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    yield Text(f"{guest_count}: {', '.join(parts)}", "bold")


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
