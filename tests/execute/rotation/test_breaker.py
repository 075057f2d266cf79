"""A night in which too much fails takes nothing more, though it is killed on the way, resumed and begun again."""

from __future__ import annotations

import pytest

from gpuops.errors import StepFailed
from gpuops.execute.journal import Journal
from gpuops.execute.journal.journal_state import dump_state, load_state
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.runs import RunKind
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import SetAttribute, Step, SuspendVm
from tests.execute.nights import Night, effects
from tests.execute.small_vcenter import Killed


def refusing(night: Night, *, killed_at: int) -> list[Step]:
    """Every marker is refused from now on; the process is killed as it sends the nth one."""
    submitted: list[Step] = []

    def refuse(step: Step) -> None:
        if isinstance(step, SetAttribute) and step.value:
            submitted.append(step)
            if len(submitted) == killed_at:
                raise Killed("at a marker")
            raise StepFailed("the operation is not allowed")

    night.world.on_submit = refuse
    return submitted


def reasons(report: Report) -> set[str]:
    return {outcome.reason for outcome in report.outcomes if outcome.verdict is Verdict.SKIPPED}


def test_the_count_goes_on_over_a_kill_and_a_resume(night: Night) -> None:
    submitted = refusing(night, killed_at=2)
    with pytest.raises(Killed):
        night.run(RunKind.NIGHT)
    resumed = night.resume()
    assert len(submitted) == 3, "one refused, one cut off, and the second refusal in a row"
    assert "the night takes nothing more: vCenter refuses one step after the other" in reasons(resumed)
    assert resumed.exit_code == 4


def test_a_run_of_the_same_night_that_cron_begins_is_refused_and_the_morning_is_not(night: Night) -> None:
    refusing(night, killed_at=0)
    night.run(RunKind.NIGHT)
    night.world.on_submit = lambda step: None
    second_night = night.run(RunKind.NIGHT)
    assert second_night.exit_code == 3
    [rejection] = second_night.plan.rejections
    assert rejection.rule == "takes nothing more: vCenter refuses one step after the other"
    assert "gpuops rotate day" in rejection.hint
    assert night.run(RunKind.NIGHT, apply=False).plan.rejections == second_night.plan.rejections
    assert effects(night.world, SuspendVm) == []
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.markers() == set()


def test_what_never_reached_vcenter_is_no_failure(night: Night) -> None:
    """Five kills leave five intents that did not happen: the night is finished all the same."""
    for _ in range(5):
        submitted = refusing(night, killed_at=1)
        with pytest.raises(Killed):
            night.resume() if night.open_runs() else night.run(RunKind.NIGHT)
        assert len(submitted) == 1
    night.world.on_submit = lambda step: None
    assert night.resume().exit_code == 0
    assert len(effects(night.world, SuspendVm)) == 2


def test_a_checkpoint_keeps_the_count(night: Night) -> None:
    refusing(night, killed_at=2)
    with pytest.raises(Killed):
        night.run(RunKind.NIGHT)
    journal = Journal.open(night.state_dir, "vc-uuid", night.world.tick)
    try:
        body = dump_state(journal.state)
        state_read = load_state("vc-uuid", Record(journal.state.seq, "", Kind.CHECKPOINT, night.world.tick(), body))
        assert state_read is not None
        assert state_read.setbacks == journal.state.setbacks
        assert [setback.failed for setback in state_read.setbacks.values()] == [1]
    finally:
        journal.close()
