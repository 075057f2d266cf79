"""Labelled cases that were made elsewhere, as JSON lines: one case a line, `gpuops schema case` has the keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gpuops.errors import UsageError
from gpuops.files.wrong_value import reason
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.case import SERIES, CaseFacts, DiagnosisCase, LabelledCase
from gpuops.model.measurements.component import Component
from gpuops.model.stored import from_stored

MOST_STEPS: Final = 5000
MOST_CASES: Final = 100_000
_HINT: Final = "gpuops help diagnose has an example of a case"
Count = Annotated[int, Field(ge=1, le=10**9)]
Number = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class FactsSection(BaseModel):
    """What is known of the VM, its host and its GPU beside counters; each may be left out."""

    # the fields are the stored names of `CaseFacts`

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    vcpus: Count | None = None
    memory_mib: Count | None = None
    cpu_mhz: Count | None = None
    host_cores: Count | None = None
    host_memory_mib: Count | None = None
    vgpu_mib: Count | None = None
    gpu_mib: Count | None = None
    most_per_gpu: Count | None = None
    sharers: Count | None = None
    scheduler: SchedulerPolicy | None = None
    pcie_width: Count | None = None
    clock_mhz: Count | None = None
    power_limit_w: Count | None = None
    remote_memory: Annotated[float, Field(ge=0, le=1)] | None = None
    host_driver: Count | None = None
    guest_driver: Count | None = None


class CaseLine(BaseModel):
    """One case. Of what each series is, and its unit, `gpuops help diagnose` says; null = missing."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    at_fault: Annotated[list[Component], Field(max_length=3)] = []
    """Empty = nothing."""
    step_s: Annotated[int, Field(ge=1, le=86_400)] = 300
    facts: FactsSection = FactsSection()
    series: dict[str, list[Number | None]]

    @field_validator("series")
    @classmethod
    def _of_counters(cls, found: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
        unknown = sorted(found.keys() - set(SERIES))
        if unknown:
            raise ValueError(f"{unknown[0][:80]!r} is no series: vm:, host:, gpu: or neighbours: and a counter")
        if not found or len({len(values) for values in found.values()}) != 1:
            raise ValueError("should have series, all equally long")
        if not 1 <= len(next(iter(found.values()))) <= MOST_STEPS:
            raise ValueError(f"should have 1 to {MOST_STEPS} steps")
        return found

    @model_validator(mode="after")
    def _none_is_alone(self) -> CaseLine:
        if Component.NONE in self.at_fault and len(self.at_fault) > 1:
            raise ValueError("at_fault: none is alone")
        return self

    def labelled(self) -> LabelledCase:
        series = {name: np.array(values, dtype=float) for name, values in self.series.items()}
        facts = from_stored(CaseFacts, self.facts.model_dump())
        return LabelledCase(
            self.name,
            DiagnosisCase(self.step_s, series, facts),
            frozenset(self.at_fault) - frozenset((Component.NONE,)),
        )


def load_cases(folder: Path) -> tuple[LabelledCase, ...]:
    """The cases of all files `*.jsonl` of a directory. Raises UsageError, naming the file and the line."""
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if not files:
        raise UsageError(f"{folder}: there is no directory with files *.jsonl", hint=_HINT)
    found: list[LabelledCase] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read: {error}", hint=_HINT) from error
        found += [parse_case(line, f"{file}:{at}") for at, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(found) > MOST_CASES:
            raise UsageError(f"{folder} has more than {MOST_CASES} cases", hint="judge a part of them")
    if not found:
        raise UsageError(f"{folder}: its files have no case", hint=_HINT)
    return tuple(found)


def parse_case(text: str, where: str) -> LabelledCase:
    """The case of one line. Raises UsageError with `where` it stands."""
    try:
        return CaseLine.model_validate_json(text).labelled()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        why = reason(first).removeprefix("Value error, ")
        said = f"{key}: {why}" if key else why
        raise UsageError(f"{where}: {said}", hint=_HINT) from None
