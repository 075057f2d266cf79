"""All operations of the table, in the order in which they are done, and the file that says what each comes to."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.peers.processes import Endpoint
from tests.peers.vcsim_table import hosts, inventory, machines, reading, reconfiguring, services
from tests.peers.vcsim_table.operation import ENDED, Operation, outcome
from tests.peers.vcsim_table.site import connect_site

GROUPS: Final = (machines, reconfiguring, inventory, hosts, reading, services)
OPERATIONS: Final[tuple[Operation, ...]] = tuple(operation for group in GROUPS for operation in group.OPERATIONS)
FILE: Final = Path(__file__).with_name("outcomes.tsv")
COLUMNS: Final = ("operation", "ours", "vcsim", "verdict", "why")


@dataclass(frozen=True, slots=True)
class Row:
    """What one operation comes to on both, and why that is not the same."""

    operation: str
    ours: str
    vcsim: str
    verdict: str
    why: str


def recorded_rows() -> list[Row]:
    """The rows of the file."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def write(ours: Mapping[str, str], vcsim: Mapping[str, str]) -> None:
    """Write what was seen into the file; what it said of a row that is as it was stays."""
    rows_by_operation = {row.operation: row for row in recorded_rows()} if FILE.exists() else {}
    lines = ["\t".join(COLUMNS)]
    for operation, came in ours.items():
        row = rows_by_operation.get(operation)
        same = row is not None and (row.ours, row.vcsim) == (came, vcsim[operation])
        verdict, why = (row.verdict, row.why) if row and same else ("same" if came == vcsim[operation] else "?", "")
        lines.append("\t".join((operation, came, vcsim[operation], verdict, why)))
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


Served = tuple[Endpoint, Callable[[], None]]
"""A server, and how its time passes while a task is waited for."""


def play_operations(serve: Callable[[], AbstractContextManager[Served]]) -> dict[str, str]:
    """What each operation comes to; by one client, on one server for as long as none ends it."""
    operations_left, came = list(OPERATIONS), dict[str, str]()
    while operations_left:
        with serve() as (endpoint, wait), connect_site(endpoint, wait) as site:
            while operations_left:
                operation = operations_left.pop(0)
                came[operation.name] = outcome(operation, site)
                if operation.last or came[operation.name] == ENDED:
                    break
    return came
