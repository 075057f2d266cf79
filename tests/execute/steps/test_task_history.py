"""vCenter's task history is asked once for steps that ended together, and of ten steps of a run at the most."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from gpuops.errors import GpuopsError, VcenterUnreachable
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.steps.task_history import ENOUGH, MOST_STEPS, TOO_MANY, TaskHistory
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import GpuTask

NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)
LOOK = Inventory("vc-uuid", "8.0.3.0", NOW, {}, {}, {}, {})


def at(minute: int) -> datetime:
    return NOW + timedelta(minutes=minute)


@dataclass
class Asked:
    """A vCenter of which only the task history is asked: one task each ten minutes."""

    untold: GpuopsError | None = None
    too_many: bool = False
    questions: list[datetime] = field(default_factory=list)

    def gpu_tasks_since(self, since: datetime) -> list[GpuTask] | None:
        self.questions.append(since)
        if self.untold is not None:
            raise self.untold
        tasks = (GpuTask(f"vm-{minute}", own=False, queued=at(minute)) for minute in range(0, 60, 10))
        return None if self.too_many else [task for task in tasks if task.queued >= since]


def history_of(asked: Asked) -> TaskHistory:
    return TaskHistory(cast(Vcenter, asked))


def refs(told: Any) -> list[str]:
    return [task.ref for task in told]


def test_steps_of_one_look_share_a_question_and_each_gets_what_came_since_its_own() -> None:
    asked = Asked()
    history = history_of(asked)
    assert refs(history.since(at(30), LOOK, [at(5), at(45)])) == ["vm-30", "vm-40", "vm-50"]
    assert refs(history.since(at(5), LOOK, [at(45)])) == ["vm-10", "vm-20", "vm-30", "vm-40", "vm-50"]
    assert refs(history.since(at(45), LOOK)) == ["vm-50"]
    assert asked.questions == [at(5)]


def test_another_look_or_an_earlier_step_is_another_question() -> None:
    asked = Asked()
    history = history_of(asked)
    history.since(at(30), LOOK)
    history.since(at(30), replace(LOOK))
    history.since(at(10), LOOK)
    history.since(at(0), LOOK)
    assert asked.questions == [at(30), at(30), at(10), at(0)]


def test_after_ten_steps_it_is_not_asked() -> None:
    asked = Asked()
    history = history_of(asked)
    told = [history.since(at(0), replace(LOOK)) for _ in range(MOST_STEPS + 5)]
    assert len(asked.questions) == MOST_STEPS
    assert told[MOST_STEPS:] == [ENOUGH] * 5
    assert ENOUGH not in told[:MOST_STEPS]


def test_one_that_is_not_told_is_not_asked_again() -> None:
    asked = Asked(VcenterUnreachable("no answer within 60 s"))
    history = history_of(asked)
    told = {str(history.since(at(0), replace(LOOK))) for _ in range(3)}
    assert told == {"vCenter does not tell its tasks: no answer within 60 s"}
    assert len(asked.questions) == 1


def test_more_than_a_page_is_no_answer() -> None:
    history = history_of(asked := Asked(too_many=True))
    assert [history.since(at(0), LOOK), history.since(at(20), LOOK)] == [TOO_MANY] * 2
    assert len(asked.questions) == 1
