"""The runner of `cases/doctor`: all findings, worst first; what a case does not name is not found.

Below it: privileges, which no snapshot has, and the XML parser of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from gpuops.errors import HostNotFound
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.examination import examine, parser_findings
from gpuops.plan.doctor.host_findings import Severity
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


def test_privileges_that_this_login_lacks_on_a_host_are_a_note() -> None:
    missing = {"host-5": {"Host.Config.Settings"}}
    examination = examine(SNAPSHOTS["drivers"](), catalog(), Scope(host="esx-05"), missing)
    assert [(finding.severity, finding.subject) for finding in examination.findings] == [("note", "esx-05")]
    assert "lacks Host.Config.Settings" in examination.findings[0].reason
    assert examination.healthy


def test_privileges_that_nobody_needs_are_named_once() -> None:
    granted = {"host-2": {"Datastore.DeleteFile"}, "host-5": {"Datastore.DeleteFile"}}
    [finding] = examine(SNAPSHOTS["drivers"](), catalog(), Scope(host="esx-0[25]"), {}, granted).findings
    assert finding.reason == "this login also has Datastore.DeleteFile: no command needs that"


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(HostNotFound):
        examine(SNAPSHOTS["drivers"](), catalog(), Scope(host="esx-9"), {})


def test_an_old_xml_parser_is_a_note() -> None:
    [note] = parser_findings((2, 5, 0))
    assert (note.severity, note.subject) == (Severity.NOTE, "libexpat 2.5.0")
    assert "before 2.7.2" in note.reason


def test_a_sound_xml_parser_is_not_found() -> None:
    assert list(parser_findings((2, 7, 2))) == list(parser_findings((3, 0, 0))) == []
