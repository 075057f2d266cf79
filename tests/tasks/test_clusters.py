"""What the module `gpu_cluster` says of a cluster that is refused: each thing once, and every host in its reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.extras.clusters.tasks import gpu_cluster
from gpuops.sim.server import start
from gpuops.sim.wire import sim_client
from gpuops.tasks.task_connection import ConnectionArguments

pytestmark = pytest.mark.long

TEMPLATE = Path(__file__).parents[2] / "templates" / "cluster.yaml"


@pytest.mark.parametrize("apply", [True, False])
def test_a_refused_cluster_is_one_line_that_says_each_reason_once(tmp_path: Path, *, apply: bool) -> None:
    text = TEMPLATE.read_text(encoding="utf-8").replace("kind: pvrdma", "kind: sriov")
    file, ready = tmp_path / "cluster.yaml", tmp_path / "ready.json"
    file.write_text(text, encoding="utf-8")
    with start("training", clock="virtual") as server:
        sim_client.write(ready, sim_client.of(server))
        connection = ConnectionArguments(hostname=f"sim@{ready}")
        answer = gpu_cluster(connection, state="present", file=str(file), name=None, resume=False, apply=apply)
        assert len(server.world.ledger) == 0
    assert (answer.exit_code, answer.result["changed"]) == (3, False)
    assert answer.message == (
        "refused, nothing changed: esx-01.trn, esx-02.trn, esx-03.trn and 1 more: SR-IOV: vmnic2 has no free virtual "
        "function (next: enable SR-IOV on it, with as many functions as VMs, or free some)"
    )
    reasons = answer.result["reasons"]
    assert [reason.partition(":")[0] for reason in reasons] == ["train", *(f"esx-0{n}.trn" for n in range(1, 5))]
