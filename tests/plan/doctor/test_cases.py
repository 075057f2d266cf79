"""The runner of `cases/doctor`: all findings, worst first; what a case does not name is not found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.examination import examine
from tests.plan.case import Words, came_out, case_of, read_cases, with_changes
from tests.plan.snapshots import SNAPSHOTS, catalog


@dataclass(frozen=True)
class DoctorCase:
    name: str
    expect: list[Mapping[str, str]]
    """The findings: `error`, `warning` or `note`: what it is; and `fix`, where the case tells it."""
    request: Words = field(default_factory=dict)
    """host, cluster."""
    inventory: str = "drivers"
    change: Mapping[str, Words] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


CASES = read_cases("doctor", DoctorCase)


def check(case: DoctorCase) -> None:
    inventory = with_changes(SNAPSHOTS[case.inventory](), case.change)
    examination = examine(inventory, catalog(), Scope(**case.request), {})
    lines = []
    for number, finding in enumerate(examination.findings):
        assert finding.fix
        line = {str(finding.severity): f"{finding.subject}: {finding.reason}"}
        named = case.expect[number] if number < len(case.expect) else {}
        lines.append(line | ({"fix": finding.fix} if "fix" in named else {}))
    assert lines == case.expect, came_out(lines)
    assert examination.healthy is not any("error" in words or "warning" in words for words in case.expect)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: DoctorCase) -> None:
    check(case)


def test_a_wrong_key_is_refused() -> None:
    case = next(case for case in CASES if case.expect)
    with pytest.raises(TypeError, match="expected"):
        case_of(DoctorCase, {"name": "x", "expect": [], "expected": []})
    with pytest.raises(AssertionError, match="hint"):
        check(replace(case, expect=[{**case.expect[0], "hint": "none"}]))
    with pytest.raises(AssertionError, match="unknown changes"):
        check(replace(case, change={"host": {}}))
    with pytest.raises(TypeError, match="vm"):
        check(replace(case, request={"vm": "desk-1"}))
