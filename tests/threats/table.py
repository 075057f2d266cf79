"""Tables: what SECURITY.md claims, and the tests that show it; controls against the threats S1 to S24, the edit that
takes each away, and the test that misses it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.mutants.table import ROOT, Edit, TextEdit, edit_of

HERE: Final = Path(__file__).parent

WAITING: Final[dict[str, str]] = {}
"""Threats to something that is not there yet."""


@dataclass(frozen=True, slots=True)
class Removal:
    """One control taken away. `test` is a node id, `says` a text of its failure that shows the reason."""

    name: str
    threat: str
    test: str
    says: str
    edits: tuple[Edit | TextEdit, ...]

    @classmethod
    def of(cls, table_row: dict[str, Any]) -> Removal:
        edits = tuple(map(edit_of, table_row["edits"]))
        return cls(table_row["name"], table_row["threat"], table_row["test"], table_row["says"], edits)


def removals(names: Sequence[str] = ()) -> tuple[Removal, ...]:
    """All of them, or those with these names or threats. Raises ValueError for two of one name."""
    table_rows = tomllib.loads((HERE / "controls.toml").read_text(encoding="utf-8"))["removal"]
    all_removals = tuple(Removal.of(table_row) for table_row in table_rows)
    if len({removal.name for removal in all_removals}) != len(all_removals):
        raise ValueError("two removals have one name")
    return tuple(removal for removal in all_removals if not names or removal.name in names or removal.threat in names)


def claims() -> dict[str, tuple[str, ...]]:
    """The tests that show each claim of SECURITY.md, by its words there."""
    claim_rows = tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))["claim"]
    return {claim_row["says"]: tuple(claim_row["tests"]) for claim_row in claim_rows}


def claimed_sentences() -> Iterator[str]:
    """Each part of a row of the table in SECURITY.md, and the sentence on `--insecure`."""
    for line in (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| From |"):
            yield from (part.strip() for part in line.strip("|").split("|")[1].split(";"))
        elif line.startswith("`--insecure`"):
            yield line


def is_test(node: str) -> bool:
    """Whether there is a test of that node id."""
    file, _, name = node.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {name.partition('[')[0].rpartition('::')[2]}(" in path.read_text(encoding="utf-8")
