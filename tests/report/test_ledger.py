"""The ledger of the simulated vCenter as people read it."""

from __future__ import annotations

from collections.abc import Callable

from gpuops.report.document import as_values
from gpuops.report.first_steps.simulator_view import ledger_document, ledger_text
from gpuops.report.layout import Shown

Render = Callable[[Shown], str]

ENTRY = {
    "sequence": 7,
    "at": "2026-11-02T18:00:05+00:00",
    "user": "me",
    "session": "s",
    "operation_id": "o",
    "method": "PowerOnVM_Task",
    "object_type": "VirtualMachine",
    "moid": "vm-1",
    "name": "ml-07\x1b",
    "before": {"power": "poweredOff", "host": "host-1", "note": ""},
    "after": {"power": "poweredOn", "host": "host-1", "note": "x"},
}


def test_a_line_per_effect_and_what_changed_below_it(plain: Render) -> None:
    assert plain(ledger_text([ENTRY])).splitlines() == [
        "   7  2026-11-02T18:00:05+00:00  PowerOnVM_Task ml-07\\u{1b}  by me",
        "      power  poweredOff -> poweredOn",
        "      note  none -> x",
    ]


def test_nothing_done_is_said(plain: Render) -> None:
    assert plain(ledger_text([])) == "nothing was done\n"
    assert as_values(ledger_document([])) == {"schema_version": 1, "kind": "ledger", "entries": []}
