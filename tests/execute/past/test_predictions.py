"""Predictions go into the journal with their steps, and come out beside what vCenter did: each once."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged
from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.journal.prediction_json import dump, load_compared
from gpuops.execute.past.followed_history import FollowedHistory
from gpuops.execute.past.history import history, past_predictions
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.prediction import Compared, Misprediction, Predicted, PredictedGpu, Prediction
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PowerOnVm

NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)
BEFORE = Inventory("vc-uuid", "8.0.3.0", NOW, {}, {}, {}, {})
GPU = PredictedGpu(PciAddress.parse("0000:3b:00.0"), 0, (4,))
PREDICTION = Prediction(
    admitted=True, host="host-1", gpus=(GPU,), seconds_at_most=180.0, free_after={"GPUs": 1, "a100-3-20c": 2}
)
WRONG = Misprediction(Predicted.GPU, "0000:3b:00.0", "0000:5e:00.0", {"assignment policy": "performance"})


def journal_in(state_dir: Path) -> Journal:
    return Journal.open(state_dir, "vc-uuid", lambda: NOW)


def test_a_comparison_is_read_as_it_was_written() -> None:
    [gpu] = dump(PREDICTION)["gpus"]
    assert (gpu["numa_node"], gpu["starts"]) == (0, [4])
    for compared in (Compared((WRONG,)), Compared(cannot_say="somebody else started web-1"), Compared()):
        assert load_compared({"compared": dump(compared)}) == compared
    assert dump(Compared()) == {}
    assert load_compared({}) is None


def test_a_prediction_that_is_none_of_ours_is_damage() -> None:
    with pytest.raises(StateDamaged, match="prediction that this version cannot read"):
        load_compared({"compared": {"wrong": "all"}})


@pytest.mark.long
def test_each_is_counted_once_however_often_its_step_is_settled(tmp_path: Path) -> None:
    with closing(journal_in(tmp_path)) as journal:
        run = journal.begin("attach")
        op_id = journal.intend(run, PowerOnVm("vm-1"), BEFORE, PREDICTION)
        journal.settled(op_id, IntentState.UNKNOWN, "lost", compared=Compared((WRONG,)))
        journal.settled(op_id, IntentState.DONE, compared=Compared((WRONG,)))
        unpredicted = journal.intend(run, PowerOnVm("vm-2"), BEFORE)
        journal.settled(unpredicted, IntentState.DONE)
        right = journal.intend(run, PowerOnVm("vm-3"), BEFORE, PREDICTION)
        journal.settled(right, IntentState.DONE, compared=Compared())
        unsure = journal.intend(run, PowerOnVm("vm-4"), BEFORE, PREDICTION)
        journal.settled(unsure, IntentState.DONE, compared=Compared(cannot_say="vCenter does not tell"))
        journal.end(run)
    found = past_predictions(tmp_path)
    assert (len(found.wrong), found.right, dict(found.cannot_say)) == (1, 1, {"vCenter does not tell": 1})
    [one] = found.wrong
    assert (one.op_id, one.step, one.ref, one.host, one.found) == (op_id, "start", "vm-1", "host-1", WRONG)
    assert (one.run_kind, one.night) == ("attach", None)
    [change] = history(tmp_path).changes
    assert change.mispredictions == (one,)
    followed = FollowedHistory(tmp_path, "", "vc-uuid").events()
    assert followed is not None
    assert followed.predictions == found


def test_a_journal_without_any_has_none(tmp_path: Path) -> None:
    assert past_predictions(tmp_path).wrong == ()
    with closing(journal_in(tmp_path)) as journal:
        run = journal.begin("attach")
        journal.settled(journal.intend(run, PowerOnVm("vm-1"), BEFORE), IntentState.DONE)
    found = past_predictions(tmp_path)
    assert (found.wrong, found.right, dict(found.cannot_say)) == ((), 0, {})
