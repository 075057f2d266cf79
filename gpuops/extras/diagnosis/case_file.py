"""Reads labelled cases from files: one JSON object on each line (`gpuops schema case` has its keys)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import numpy as np
from msgspec import Meta

from gpuops.config.decoding import Section, WrongContent, decode
from gpuops.errors import UsageError
from gpuops.extras.diagnosis.case import SERIES, CaseFacts, Component, DiagnosisCase, LabelledCase
from gpuops.files.file import NOT_PARSED, parse_json
from gpuops.model.file_keys import Reads, Text

MOST_STEPS: Final = 5000
MOST_CASES: Final = 100_000
_HINT: Final = "gpuops help diagnose has an example of a case"
Number = Annotated[float, Meta(ge=0, le=1e15)]


Series = dict[str, list[Number | None]]


def _checked_series(series: Series) -> Series:
    """Return the series unchanged. Raises ValueError for unknown names and lengths that are not allowed."""
    unknown = sorted(series.keys() - set(SERIES))
    if unknown:
        raise ValueError(f"{unknown[0][:80]!r} is not a series: write vm:, host:, gpu: or neighbours:, then a counter")
    if not series or len({len(samples) for samples in series.values()}) != 1:
        raise ValueError("should have at least one series, and all series equally long")
    if not 1 <= len(next(iter(series.values()))) <= MOST_STEPS:
        raise ValueError(f"each series should have 1 to {MOST_STEPS} steps")
    return series


class CaseLine(Section, kw_only=True):
    """One case. Of what each series is, and its unit, `gpuops help diagnose` says; null = missing."""

    name: Text
    at_fault: Annotated[tuple[Component, ...], Meta(max_length=3)] = ()
    """Empty = nothing."""
    step_s: Annotated[int, Meta(ge=1, le=86_400)] = 300
    facts: CaseFacts = CaseFacts()
    series: Annotated[Series, Reads(_checked_series, Series)]

    def __post_init__(self) -> None:
        if Component.NONE in self.at_fault and len(self.at_fault) > 1:
            raise ValueError("at_fault: leave out `none` or the other components")

    def labelled(self) -> LabelledCase:
        """Return the case of this line; `none` as the component at fault becomes the empty set."""
        series = {name: np.array(samples, dtype=float) for name, samples in self.series.items()}
        return LabelledCase(
            self.name,
            DiagnosisCase(self.step_s, series, self.facts),
            frozenset(self.at_fault) - frozenset((Component.NONE,)),
        )


def load_cases(folder: Path) -> tuple[LabelledCase, ...]:
    """Return the cases of all files `*.jsonl` of a directory. Raises UsageError that names the file and the line."""
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if not files:
        raise UsageError(f"{folder} is not a directory with files *.jsonl", hint=_HINT)
    cases: list[LabelledCase] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read: {error}", hint=_HINT) from error
        cases += [parse_case(line, f"{file}:{at}") for at, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(cases) > MOST_CASES:
            raise UsageError(
                f"{folder} has more than {MOST_CASES} cases", hint="put some of its files into another directory"
            )
    if not cases:
        raise UsageError(f"the files *.jsonl in {folder} contain no case", hint=_HINT)
    return tuple(cases)


def parse_case(text: str, where: str) -> LabelledCase:
    """Return the case of one line. Raises UsageError; `where`: the file and line, for its message."""
    try:
        return decode(CaseLine, parse_json(text), strict=False).labelled()
    except WrongContent as error:
        raise UsageError(f"{where}: {error}", hint=_HINT) from None
    except NOT_PARSED as error:
        raise UsageError(f"{where}: Invalid JSON: {error}", hint=_HINT) from None
