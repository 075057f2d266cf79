"""The judge: it shares no code with what it judges, and says of each thing that is broken that it is."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kills.judge import Seen, broken

JUDGE = Path(__file__).with_name("judge.py")


def test_the_judge_imports_the_standard_library_and_a_yaml_reader_alone() -> None:
    imported = set()
    for node in ast.walk(ast.parse(JUDGE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a neighbour of its own package"
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Name):
            assert node.id not in ("__import__", "exec", "eval", "import_module")
    assert imported - set(sys.stdlib_module_names) == {"yaml"}
    assert "importlib" not in imported


def effect(name: str, method: str, before: dict[str, Any], after: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An entry of the ledger, by us an hour after the evening."""
    return {
        "at": "2026-11-02T19:00:00+00:00",
        "operation_id": f"gpuops-1-{name}-{method}",
        "method": method,
        "object_type": "VirtualMachine",
        "moid": f"vm-{name}",
        "name": name,
        "before": before,
        "after": after,
        **fields,
    }


ON, OFF, SUSPENDED = {"power": "poweredOn"}, {"power": "poweredOff"}, {"power": "suspended"}
SUSPEND = effect("vdi-01", "SuspendVM_Task", ON, SUSPENDED)
RESUME = effect("vdi-01", "PowerOnVM_Task", SUSPENDED, ON)
MARK = effect("vdi-01", "SetField", {"mark": ""}, {"mark": "tonight"})
UNMARK = {**MARK, "before": {"mark": "tonight"}, "after": {"mark": ""}, "operation_id": "gpuops-2-1"}


def good() -> Seen:
    """One desktop that was suspended and resumed, one that is busy, an ML VM that was not started, a stranger."""
    evening = {
        name: {"name": name, "power": power, "cpu_mhz": cpu}
        for name, power, cpu in (("vdi-01", "on", 60), ("vdi-02", "on", 5200), ("ml-01", "off", 0), ("bare", "on", 0))
    }
    policy = {"marker": "mark", "pools": [{"idle": {"cpu_below_mhz": 500}}], "ml": {"queue": [{"vm": "ml-01"}]}}
    runs = [
        {"what": "night", "signal": "SIGKILL", "code": -9, "said": ""},
        {"what": "day", "signal": "", "code": 0, "said": "done"},
    ]
    return Seen(evening, [MARK, SUSPEND, RESUME, UNMARK], policy, runs, [])


def test_a_good_night_is_good() -> None:
    assert broken(good()) == []


def forgotten(record: Seen) -> None:
    record.ledger.remove(RESUME)
    record.runs[-1]["code"] = 4


def named_but_fine(record: Seen) -> None:
    record.runs[-1]["code"] = 0
    record.ledger.remove(RESUME)
    record.runs[-1]["said"] = "vdi-01 is not back"


def busy(record: Seen) -> None:
    record.ledger[:0] = [effect("vdi-02", "SuspendVM_Task", ON, SUSPENDED), effect("vdi-02", "Resume", SUSPENDED, ON)]


def became_busy(record: Seen) -> None:
    record.used.append({"name": "vdi-01", "from": "2026-11-02T18:50:00+00:00"})


def discard_state(record: Seen) -> None:
    record.ledger.insert(2, effect("vdi-01", "PowerOffVM_Task", SUSPENDED, OFF))


def stop_desktop(record: Seen) -> None:
    record.ledger.insert(0, effect("vdi-01", "PowerOffVM_Task", ON, OFF))


def touch_other_vm(record: Seen) -> None:
    record.ledger.append(effect("bare", "ReconfigVM_Task", {"memory": 1}, {"memory": 2}))


def left_marked(record: Seen) -> None:
    record.ledger.remove(UNMARK)
    record.runs[-1]["code"] = 4


def crash_run(record: Seen) -> None:
    record.runs[0] |= {"code": 1, "said": "internal error"}


def add_traceback(record: Seen) -> None:
    record.runs[0]["said"] = "Traceback (most recent call last)"


def killed_by_nobody(record: Seen) -> None:
    record.runs[0]["signal"] = ""


def never_ended(record: Seen) -> None:
    record.runs[-1]["code"] = 5


def two_for_one(record: Seen) -> None:
    record.ledger.append(effect("vdi-03", "SetField", {}, {"note": "x"}, operation_id=UNMARK["operation_id"]))
    record.evening["vdi-03"] = {"name": "vdi-03", "power": "on", "cpu_mhz": 60}


@pytest.mark.parametrize(
    ("breaks", "problem_text"),
    [
        (forgotten, "vdi-01 ran in the evening, is suspended, and nobody says so"),
        (named_but_fine, "the last morning ended 0, and vdi-01 is suspended"),
        (busy, "vdi-02 was suspended"),
        (became_busy, "vdi-01 was suspended at 19:00:00, and was busy since 18:53:00"),
        (discard_state, "discarded what vdi-01 held"),
        (stop_desktop, "PowerOffVM_Task powered off vdi-01"),
        (touch_other_vm, "touched bare, which the policy does not name"),
        (left_marked, "vdi-01 still has its marker"),
        (crash_run, "rotate night ended 1"),
        (add_traceback, "printed a traceback"),
        (killed_by_nobody, "rotate night ended -9"),
        (never_ended, "the last run is rotate day, which ended 5"),
        (two_for_one, "gpuops-2-1 did SetField to vdi-03"),
    ],
)
def test_each_thing_that_is_broken_is_said(breaks: Callable[[Seen], None], problem_text: str) -> None:
    record = good()
    breaks(record)
    assert [problem for problem in broken(record) if problem_text in problem], broken(record)


def test_what_one_night_left_behind_is_said_although_the_next_one_mends_it() -> None:
    record = good()
    record.runs *= 2
    record.mornings = [{"ledger": 2, "runs": 2}, {"ledger": 4, "runs": 4}]
    assert "vdi-01 ran in the evening, is suspended, and nobody says so" in broken(record)
    record.mornings[0]["ledger"] = 4
    assert broken(record) == []
