"""An account that may read and nothing else is enough for every command that only reads."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import ADMIN, READ_ONLY
from gpuops.sim.wire import sim_client
from tests.cli.test_canary import JOBS, POLICY, READING, ROLES

VERBS = (
    *READING,
    "inventory -o yaml",
    "idle",
    f"idle --policy {POLICY}",
    "what-if --add-hosts 1xL40S:8 --arrivals 2 --seeds 1",
    "top --show vms",
    "top --show gpus -o json",
    "doctor",
    "report",
    "report --html fleet.html --csv hours.csv",
    "readiness",
    "place --profile a100-3-20c --vcpu 4 --memory 16GiB",
    f"job plan --file {JOBS} --allow-mount /data",
    "job list",
    "cluster show",
    "pool show",
    "host mig show",
    f"rotate plan --policy {POLICY}",
    f"queue --policy {POLICY}",
    "rotate status -o json",
    "rotate overdue",
    "rotate audit verify",
    "history",
    "change status",
    "observe --once",
    "observe status",
    "metrics --textfile metrics.prom",
    f"roles show --file {ROLES}",
    "login test",
    "bundle --dry-run",
)


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with SimServer(build("lab")) as server:
        yield server
        assert server.ledger == () and server.world.bugs == []


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("words", VERBS)
def test_it_reads_all_that_an_administrator_reads(
    words: str, server: SimServer, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clean)
    ready = clean / "ready.json"
    sim_client.write(ready, sim_client.of(server))
    results = []
    for role in (ADMIN, READ_ONLY):
        server.world.authority.permit(server.username, role)
        completed = CliRunner().invoke(app, shlex.split(words), env={"GPUOPS_VCENTER": f"sim@{ready}"})
        results.append((completed.exit_code, completed.stderr))
    by_administrator, by_reader = results
    assert by_reader == by_administrator
    assert by_reader[0] in (0, 3)
