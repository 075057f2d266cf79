"""What an error document says of a run that broke off: which error it is, and whether something was changed before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal
from tests.cli.conftest import Lab

ATTACH = ("attach", "--vm", "ml-07", "--profile", "a100-3-20c", "--output", "json")


@pytest.mark.parametrize(
    ("record", "written", "applied"),
    [
        pytest.param("intend", False, False, id="before the first step is sent"),
        pytest.param("record_task", True, None, id="while its task is under way"),
        pytest.param("record_outcome", True, True, id="when it is done"),
    ],
)
def test_an_error_says_whether_something_was_changed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, record: str, written: bool, applied: bool | None
) -> None:
    write = getattr(Journal, record)

    def on_a_full_disk(*arguments: Any, **options: Any) -> None:
        if written:
            write(*arguments, **options)
        raise StateDamaged("the journal cannot be written: No space left on device")

    monkeypatch.setattr(Journal, record, on_a_full_disk)
    result = lab.run(*ATTACH)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["kind"], document["code"]) == (7, "error", "state-damaged")
    assert document["applied"] is applied
    assert bool(lab.effects) is (applied is True)


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (("attach", "--vm", "nobody", "--profile", "a100-3-20c"), 2, "vm-not-found"),
        (("detach", "--vm", "vdi-01", "--all", "--power", "cycle"), 2, "usage-error"),
        (("attach", "--bogus"), 2, "usage-error"),
    ],
)
def test_nothing_was_changed_before_a_refusal(lab: Lab, words: tuple[str, ...], exit_code: int, code: str) -> None:
    result = lab.run(*words, "--output", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["code"], document["applied"]) == (exit_code, code, False), result.stderr
    assert lab.effects == []


def test_a_bug_in_the_middle_says_it_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    record_outcome = Journal.record_outcome

    def broken(*arguments: Any, **options: Any) -> None:
        record_outcome(*arguments, **options)
        raise ZeroDivisionError

    monkeypatch.setattr(Journal, "record_outcome", broken)
    result = lab.run(*ATTACH)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["code"], document["applied"]) == (1, "internal-error", True)


def test_a_plan_that_is_refused_or_has_nothing_to_do_applies_nothing(lab: Lab) -> None:
    refused = json.loads(lab.run("detach", "--vm", "vdi-01", "--all", *ATTACH[-2:]).stdout)
    assert (refused["feasible"], refused["applied"], refused["changed"]) == (False, False, False)
    first_attach, second_attach = (json.loads(lab.run(*ATTACH).stdout) for _ in range(2))
    assert (first_attach["applied"], first_attach["changed"]) == (True, True)
    assert (second_attach["applied"], second_attach["changed"]) == (False, False)
