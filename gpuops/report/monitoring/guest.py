"""What `gpuops guest check` prints: a line for each verdict on a guest, with its next move. Guests' words are made
harmless."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.model.guests.guest import GuestWay
from gpuops.plan.guest.question import GuestVerdict, GuestVerdicts, counts
from gpuops.plan.guest.rows import GuestRow, GuestState
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count, visible

_STYLES: Final = {GuestState.PASS: "green", GuestState.FAIL: "bold red", GuestState.UNKNOWN: "yellow"}
_WAYS: Final = {GuestWay.TOOLS: "VMware Tools", GuestWay.SSH: "SSH"}
_WIDTH: Final = 9


def guest_check_text(found: GuestVerdicts, way: GuestWay) -> Shown:
    """Guest by guest its rows, and one closing line."""
    inventory = found.inventory
    head = (
        f"vCenter {visible(inventory.api_version)}: {count(len(found.guests), 'guest')} by {_WAYS[way]}, "
        f"read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    )
    return (
        Text(head, "bold"),
        *(line for each in found.guests for line in _lines(each)),
        Text(_summary(found), "bold"),
    )


def _lines(guest: GuestVerdict) -> Iterator[Text]:
    yield Text(f"{visible(guest.vm.name)}: {'ready' if guest.ready else 'not ready'}", "bold")
    for row in guest.rows:
        yield from _row(row)


def _row(row: GuestRow) -> Iterator[Text]:
    yield Text(f"  {row.state:<{_WIDTH}}", _STYLES[row.state]).append(f"{visible(row.check)}: {visible(row.says)}")
    if row.next_move:
        yield Text(f"{'':<{_WIDTH + 2}}next: {visible(row.next_move)}", "dim")


def _summary(found: GuestVerdicts) -> str:
    if not found.guests:
        return "no guest was asked: the pool is empty"
    told = counts(found)
    words = {GuestState.PASS: "ready", GuestState.FAIL: "not ready", GuestState.UNKNOWN: "not known to be ready"}
    parts = [f"{told[state]} {word}" for state, word in words.items() if told[state]]
    return f"{count(len(found.guests), 'guest')}: {', '.join(parts)}"


def guest_check_document(found: GuestVerdicts, way: GuestWay) -> Document:
    """The same for programs."""
    inventory = found.inventory
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "guest-check",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "via": way.value,
        "ready": found.ready,
        "guests": [
            {
                "vm": {"ref": each.vm.ref, "name": each.vm.name},
                "ready": each.ready,
                "rows": [
                    {"check": row.check, "state": row.state.value, "says": row.says, "next": row.next_move}
                    for row in each.rows
                ],
            }
            for each in found.guests
        ],
    }
