"""Draw: the sample of mutations of each area, by a fixed rule and not by anybody's choice.

All mutations of an area are put in the order of a digest of their names, and the first are taken; so an edit elsewhere
in a file changes the sample as little as can be. No function and no operator has more than its share.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from tests.mutants.drawn.operators import Members, Mutation, enums, is_change, mutate, mutations
from tests.mutants.table import ROOT

ROTATION: Final = "gpuops/plan/rotation"
EXECUTE: Final = "gpuops/execute"
AREAS: Final[Mapping[str, tuple[str, ...]]] = {
    "guard": (f"{ROTATION}/nights/guard.py", f"{ROTATION}/nights/stop_conditions.py"),
    "identity": (f"{ROTATION}/taken_vms.py", f"{ROTATION}/returns/foreign_nights.py"),
    "lease": (f"{ROTATION}/lease.py", f"{EXECUTE}/lease/lease.py"),
    "adoption": (
        f"{EXECUTE}/steps/step_executor.py", f"{EXECUTE}/steps/vm_executor.py", f"{EXECUTE}/steps/vm_looks.py",
        f"{EXECUTE}/steps/settle.py", "gpuops/vsphere/writing/lost_replies.py",
    ),
    "journal": tuple(
        f"{EXECUTE}/journal/{name}.py"
        for name in ("journal", "journal_reads", "journal_state", "record", "store", "sql")
    ),
    "return": (
        f"{ROTATION}/returns/day.py", "gpuops/plan/placement/suspended_vms.py", f"{ROTATION}/returns/return_time.py",
        f"{EXECUTE}/runs/nights.py", f"{EXECUTE}/rotation/rotation_run.py", f"{EXECUTE}/rotation/rotation.py",
    ),
}  # fmt: skip
EACH: Final = 11
"""Mutants of an area."""
OF_A_FUNCTION: Final = 2
OF_AN_OPERATOR: Final = 3


@cache
def members() -> Members:
    """Every enum of the package."""
    enum_members: dict[str, tuple[str, ...]] = {}
    for path in sorted((ROOT / "gpuops").rglob("*.py")):
        enum_members |= enums(path.read_text(encoding="utf-8"))
    return enum_members


def source_of(file: str) -> str:
    """Raises LookupError for a file that is not there any more."""
    path = ROOT / file
    if not path.is_file():
        raise LookupError(file)
    return path.read_text(encoding="utf-8")


def is_there(mutation: Mutation) -> bool:
    """Whether what it changes is still in the source."""
    try:
        mutate(mutation, source_of(mutation.file), members())
    except LookupError:
        return False
    return True


def all_of(area: str) -> tuple[Mutation, ...]:
    """Every mutation of the area."""
    return tuple(mutation for file in AREAS[area] for mutation in mutations(file, source_of(file), members()))


def drawn(area: str, count: int = EACH) -> Iterator[Mutation]:
    """So many mutations of the area."""
    functions: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    number_drawn = 0
    for mutation in sorted(all_of(area), key=lambda candidate: hashlib.sha256(candidate.name.encode()).digest()):
        if number_drawn == count:
            return
        function = f"{mutation.file}::{mutation.function}"
        if functions[function] == OF_A_FUNCTION or operators[mutation.operator] == OF_AN_OPERATOR:
            continue
        if is_change(mutation, source_of(mutation.file), members()):
            functions[function] += 1
            operators[mutation.operator] += 1
            number_drawn += 1
            yield mutation
