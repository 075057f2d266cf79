"""Results: what became of each drawn mutant, as JSON that is replayed, and as a table that is read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.mutants.drawn.draw import AREAS
from tests.mutants.drawn.operators import Mutation
from tests.mutants.table import HERE

RECORD: Final = HERE / "drawn.json"
WORLDS: Final = HERE / "drawn" / "survivors.toml"
"""By the name of a mutant, what world or checker would kill it."""
COMMAND: Final = "make mutants"
_BEGIN, _END = "<!-- mutants: made by `make mutants` -->", "<!-- mutants: end -->"


@dataclass(frozen=True, slots=True)
class Judged:
    """`night` killed it, as JSON, and `said` is what it broke; None = it survived."""

    area: str
    mutation: Mutation
    night: dict[str, Any] | None
    said: str | None
    nights: int
    seconds: float

    def __str__(self) -> str:
        end = f"killed: {self.said}" if self.said is not None else "SURVIVED"
        return (
            f"{self.area:9} {self.nights:5} nights {self.seconds:6.1f} s  {self.mutation.name}\n          {end[:150]}"
        )


def write(judgements: Sequence[Judged], budget_s: float) -> None:
    """Both files, each in its place; the rest of RESULTS.md stays."""
    record = {"budget_s": budget_s, "mutants": [asdict(judgement) for judgement in judgements]}
    RECORD.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    put_into_table()


def put_into_table() -> None:
    """What is recorded, in its place in RESULTS.md."""
    from tests.nights.measuring.coverage import put_section  # the nights import the engine, which `judge` mutates first

    put_section("\n".join([_BEGIN, *section_of_record(), _END]))


def read() -> tuple[Judged, ...]:
    """What was written last. Raises FileNotFoundError."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return tuple(Judged(**{**row, "mutation": Mutation(**row["mutation"])}) for row in record["mutants"])


def section_of_record() -> list[str]:
    """The table of what is recorded, line by line."""
    judgements, budget_s = read(), json.loads(RECORD.read_text(encoding="utf-8"))["budget_s"]
    worlds = tomllib.loads(WORLDS.read_text(encoding="utf-8"))
    killed = [judgement for judgement in judgements if judgement.said is not None]
    lines = [
        "## Mutants judged by nights alone",
        "",
        f"{len(killed)} of {len(judgements)} mutants are killed by nights alone: no unit test is asked.",
        f"Each has the nights of its area, in the order of `kinds.py`, for {budget_s:.0f} s of one core at most.",
        "`tests/mutants/drawn/` draws them by a fixed rule from all changes that it knows: `operators.py` says",
        "which it leaves out. A night that breaks the unchanged engine too does not count.",
        f"`{COMMAND}` makes this table and `tests/mutants/drawn.json`; `make long` replays the killing nights.",
        "",
        "| Area | Mutants | Killed |",
        "|---|---|---|",
    ]
    for area in AREAS:
        judgements_here = [judgement for judgement in judgements if judgement.area == area]
        dead = sum(judgement.said is not None for judgement in judgements_here)
        lines.append(f"| {area} | {len(judgements_here)} | {dead} |")
    lines += ["", "### Killed", "", "| Where | Change | By | It breaks |", "|---|---|---|---|"]
    lines += [
        f"| {_where(judgement)} | {_change(judgement)} | {_by(judgement)} | {_cell(judgement.said or '', 90)} |"
        for judgement in killed
    ]
    lines += ["", "### Survivors", "", "| Where | Change | CPU s | What would kill it |", "|---|---|---|---|"]
    for judgement in judgements:
        if judgement.said is None:
            world = worlds.get(judgement.mutation.name, "")
            lines.append(
                f"| {_where(judgement)} | {_change(judgement)} | {judgement.seconds:.0f} | {_cell(world, 400)} |"
            )
    return lines


def _where(judgement: Judged) -> str:
    return f"`{Path(judgement.mutation.file).relative_to('gpuops')}` `{judgement.mutation.function}`"


def _change(judgement: Judged) -> str:
    mutation = judgement.mutation
    return f"{mutation.operator}: `{_cell(mutation.before, 70)}` to `{_cell(mutation.after, 70)}`"


def _by(judgement: Judged) -> str:
    if judgement.night is None:
        return "its import"
    events = judgement.night["events"]
    events_text = "" if events is None else f", {len(events)} events"
    return f"{judgement.night['kind']} {judgement.night['seed']}{events_text}"


def _cell(text: str, most: int) -> str:
    line = " ".join(text.replace("|", "\\|").replace("`", "'").split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
