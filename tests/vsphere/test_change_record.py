"""What a session says of whether it changed something: only what is certain."""

from __future__ import annotations

from types import SimpleNamespace

from gpuops.errors import OutcomeUnknown, StepFailed
from gpuops.model.vcenter.task import LEASE_OPERATION
from gpuops.vsphere.session import CANCEL_OPERATION, ChangeRecord

TASK = SimpleNamespace(_moId="task-1")


def test_a_call_without_a_task_is_done_when_it_is_answered() -> None:
    record = ChangeRecord()
    assert record.applied is False
    record.note_accepted(None, "gpuops-1")
    assert record.applied is True


def test_a_task_counts_by_its_end() -> None:
    failed, succeeded, unknown = ChangeRecord(), ChangeRecord(), ChangeRecord()
    for record in (failed, succeeded, unknown):
        record.note_accepted(TASK, "gpuops-1")
        assert record.applied is None
    failed.note_ended("task-1", StepFailed("no"))
    succeeded.note_ended("task-1", None)
    unknown.note_ended("task-1", OutcomeUnknown("gone"))
    assert (failed.applied, succeeded.applied, unknown.applied) == (False, True, None)


def test_a_lost_reply_is_not_known() -> None:
    record = ChangeRecord()
    record.note_lost("gpuops-1")
    assert record.applied is None
    record.note_accepted(None, "gpuops-2")
    assert record.applied is True


def test_a_lease_and_a_task_that_is_taken_back_do_not_count() -> None:
    record = ChangeRecord()
    record.note_accepted(TASK, f"{LEASE_OPERATION}abc-1")
    record.note_accepted(None, f"{CANCEL_OPERATION}task-1")
    record.note_lost(f"{LEASE_OPERATION}abc-1")
    record.note_ended("task-1", None)
    assert record.applied is False
