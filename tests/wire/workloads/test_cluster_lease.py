"""A use of a cluster that cannot be marked on its VM of rank 0: the reason of vCenter and the next move are said."""

from __future__ import annotations

import pytest

from gpuops.errors import GpuopsError, Locked, Refused
from gpuops.extras.clusters.cluster_runs import running_cluster
from gpuops.extras.clusters.existing import delete_cluster
from gpuops.extras.clusters.run import used_alone
from gpuops.sim.fault_injection.rule import Effect, Rule
from tests.wire.workloads.training import PVRDMA, Training

pytestmark = pytest.mark.long

WRITES = "ReconfigVM_Task"


@pytest.mark.parametrize(
    ("rule", "kind", "says", "next_move"),
    [
        (
            Rule(Effect.FAULT, WRITES, times=None, fault="NoPermission"),
            Refused,
            "this login lacks the privilege",
            "ask for this privilege",
        ),
        (
            Rule(Effect.TASK, WRITES, times=None, fault="NoPermission"),
            Refused,
            "this login lacks the privilege",
            "ask for this privilege",
        ),
        (
            Rule(Effect.TASK, WRITES, times=None, fault="SystemError"),
            Refused,
            "SystemError",
            "look at the tasks of train-00",
        ),
        (
            Rule(Effect.TASK, WRITES, times=None, fault="TaskInProgress"),
            Locked,
            "another task",
            "look at the tasks of train-00",
        ),
    ],
    ids=["refused at once", "task refused", "task fails", "busy"],
)
def test_a_lease_that_cannot_be_written_says_why_and_not_that_somebody_has_it(
    training: Training, rule: Rule, kind: type[GpuopsError], says: str, next_move: str
) -> None:
    training.create(PVRDMA)
    training.fails(rule)
    with pytest.raises(kind) as used, used_alone(training.site, running_cluster("train", training.site), "cluster run"):
        pass
    with pytest.raises(kind) as deleted:
        delete_cluster("train", training.site, apply=True)
    for error in (used.value, deleted.value):
        assert error.message.startswith("cluster train: it cannot be marked as in use: ")
        assert says in error.message and "is in use" not in error.message
        assert next_move in error.hint
    training.server.world.injector.clear()
    with used_alone(training.site, running_cluster("train", training.site), "cluster run"):
        pass
