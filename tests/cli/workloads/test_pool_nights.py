"""Nights and pools of lent GPUs, as typed: a night takes a server back and the morning returns it, or it gives one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuops import clock
from gpuops.cli import opening
from gpuops.cli.app import app
from gpuops.execute.site import Site
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, Step
from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import ready_file
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

POOL = """
version: 1
name: lab
network: VM Network
servers: [ml-09]
grace: 1m
"""
POLICY = """
version: 1
name: lending
windows: any
pools:
  - name: lenders
    parked: true
    owner: none
    select: {name: ml-09}
    idle: {cpu_below_mhz: 500}
  - name: office
    parked: true
    owner: none
    priority: 10
    select: {folder: vdi, name: vdi-0*}
    idle: {cpu_below_mhz: 500}
lending: [{pool: lab, by_night: BY_NIGHT, grace: 15m}]
ml:
  queue: [QUEUE]
"""


@dataclass(frozen=True)
class PoolNight:
    """The command line pointed at the scenario `lab`, whose ml-09 has all of an A40 of esx-02 and lends it."""

    server: SimServer
    where: tuple[str, ...]
    directory: Path

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The document of the answer."""
        found = CliRunner().invoke(app, [*words, *self.where, "--output", "json"])
        assert found.exit_code == code, found.output
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    def text(self, *words: str) -> str:
        found = CliRunner().invoke(app, [*words, *self.where])
        assert found.exit_code == 0, found.output
        return " ".join(found.output.split())

    def policy(self, by_night: str, queue: str) -> str:
        """The path of the policy."""
        path = self.directory / f"{by_night}.yaml"
        path.write_text(POLICY.replace("BY_NIGHT", by_night).replace("QUEUE", queue), encoding="utf-8")
        return str(path)

    def power(self, name: str) -> str:
        with Connection(target_of(self.server)) as connection:
            return str(connection.inventory().find_vm(name).power)

    def pool(self) -> dict[str, Any]:
        [found] = self.run("pool", "show", "--ended", "9")["pools"]
        return dict(found)

    def state(self) -> str:
        [server] = self.pool()["servers"]
        return str(server["state"])

    def leases(self) -> dict[str, str]:
        """State of each lease, by client; the latest."""
        return {each["client"]: each["state"] for each in self.pool()["leases"]}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolNight]:
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "state"))
    ahead = clock.wall_clock() - clock.machine_time()
    with start("lab", clock="stepped") as server:
        ready = tmp_path / "ready.json"
        ready_file.write(ready, ready_file.of(server))
        yield PoolNight(server, ("--vcenter", f"sim@{ready}"), tmp_path)
    clock.set_ahead(ahead)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were paused for, which pass at once."""
    seconds: list[float] = []

    def pause(passed_s: float) -> None:
        seconds.append(passed_s)
        clock.set_ahead(clock.wall_clock() - clock.machine_time() + timedelta(seconds=passed_s))

    opened = opening.open_site

    @contextmanager
    def opened_with_pause(*words: Any, **options: Any) -> Iterator[Site]:
        with opened(*words, **options) as site:
            site.pause = pause
            yield site

    monkeypatch.setattr(opening, "open_site", opened_with_pause)
    return seconds


def make(lab: PoolNight, *, runs: bool) -> None:
    file = lab.directory / "pool.yaml"
    file.write_text(POOL, encoding="utf-8")
    if runs:
        lab.text("attach", "--vm", "ml-09", "--profile", "nvidia_a40-48c", "--power", "on", "--yes")
    lab.run("pool", "create", "--file", str(file))
    assert lab.state() == ("serving" if runs else "dead")


@pytest.mark.long
def test_a_night_takes_a_server_back_and_it_lends_again_when_the_night_is_over(
    lab: PoolNight, waited: list[float]
) -> None:
    make(lab, runs=True)
    lab.run("pool", "lend", "--client", "ml-07", "--memory", "8GiB", "--for", "4h")
    night = ("rotate", "night", "--policy", lab.policy("take-back", "{vm: ml-06, relocate: true}"))
    told = lab.text(*night, "--dry-run")
    assert "ml-09 lends its GPUs for pool lab: it is drained first, and its clients have 15 min" in told
    assert lab.leases() == {"ml-07": "lent"} and lab.state() == "serving" and not waited
    lab.run(*night, "--yes")
    assert 14 * 60 < sum(waited) < 17 * 60
    assert (lab.power("ml-09"), lab.power("ml-06")) == ("suspended", "poweredOn")
    assert lab.leases() == {"ml-07": "waiting"}
    assert "pool lab: ml-09 is taken back for night" in lab.text("rotate", "status")
    lab.run("pool", "reclaim", "--due")
    assert lab.state() == "dead"
    lab.run("rotate", "day", "--yes")
    assert lab.power("ml-09") == "poweredOn"
    assert lab.run("pool", "reclaim", "--due")["changed"]
    assert lab.state() == "serving" and lab.leases() == {"ml-07": "lent"}
    assert "taken back" not in lab.text("rotate", "status")
    assert not lab.run("pool", "reclaim", "--due")["changed"]


@pytest.mark.long
def test_a_server_that_a_night_starts_lends_until_its_return_which_waits_for_no_lease(
    lab: PoolNight, waited: list[float]
) -> None:
    make(lab, runs=False)
    lab.run("rotate", "night", "--policy", lab.policy("give", "{vm: ml-09}"), "--yes")
    assert lab.power("ml-09") == "poweredOn" and lab.state() == "dead"
    assert lab.run("pool", "reclaim", "--due", "--dry-run")["changed"] and lab.state() == "dead"
    lab.run("pool", "reclaim", "--due")
    assert lab.state() == "serving"
    assert "pool lab: ml-09 lends by night" in lab.text("rotate", "status")
    lab.run("pool", "lend", "--client", "ml-07", "--memory", "8GiB", "--for", "1h")
    assert lab.leases() == {"ml-07": "lent"}
    lab.run("pool", "lend", "--client", "ml-08", "--memory", "8GiB", "--for", "20h")
    assert lab.leases()["ml-08"] == "waiting", "it would last longer than the night lets it"
    lab.run("rotate", "day", "--yes")
    assert lab.power("ml-09") == "poweredOff" and lab.state() != "serving" and not waited
    assert lab.leases() == {"ml-07": "waiting", "ml-08": "waiting"}
    assert "lends" not in lab.text("rotate", "status")
    lab.run("pool", "reclaim", "--due")
    assert lab.state() == "dead"


@pytest.mark.long
def test_a_server_that_was_started_anew_has_lost_its_sessions(lab: PoolNight) -> None:
    make(lab, runs=True)
    lab.run("pool", "lend", "--client", "ml-07", "--memory", "8GiB", "--for", "4h")
    with Connection(target_of(lab.server)) as connection:
        vm = connection.inventory().find_vm("ml-09")
        for step in (PowerOffVm(vm.ref), PowerOnVm(vm.ref, None)):
            act(connection, step)
    assert lab.leases() == {"ml-07": "lent"}, "between two looks it was never seen to be off"
    lab.run("pool", "reclaim", "--due")
    assert lab.state() == "dead" and lab.leases() == {"ml-07": "waiting"}
    told = lab.text("pool", "show", "--ended", "9")
    assert "ml-09 was started anew at" in told and "--server ml-09 --again" in told
    [broken] = [each for each in lab.pool()["leases"] if each["state"] == "broken"]
    assert "its sessions are lost" in broken["because"]
    lab.run("pool", "reclaim", "--server", "ml-09", "--again")
    assert lab.leases() == {"ml-07": "lent"} and "started anew" not in lab.text("pool", "show")
    assert not lab.run("pool", "reclaim", "--due")["changed"], "its start is known now"


def act(connection: Connection, step: Step) -> None:
    task = connection.submit(step, connection.inventory(), "somebody")
    assert task is not None
    assert [end.error for end in connection.wait([task], 60)] == [None]


@pytest.mark.long
def test_what_a_night_with_a_window_gives_lends_until_it_closes_less_the_grace(lab: PoolNight) -> None:
    make(lab, runs=False)
    path = Path(lab.policy("give", "{vm: ml-09}"))
    now = clock.wall_clock()
    hours = {name: f"{now + timedelta(hours=ahead):%H:%M}" for name, ahead in (("opens", -1), ("closes", 6))}
    window = f'[{{zone: UTC, opens: "{hours["opens"]}", closes: "{hours["closes"]}"}}]'
    path.write_text(path.read_text().replace("windows: any", f"windows: {window}"), encoding="utf-8")
    lab.run("rotate", "night", "--policy", str(path), "--yes")
    lab.run("pool", "reclaim", "--due")
    [server] = lab.pool()["servers"]
    closes = now.replace(second=0, microsecond=0) + timedelta(hours=6)
    until = datetime.fromisoformat(server["night"]["until"])
    assert (server["state"], server["night"]["by_night"]) == ("serving", "give")
    assert closes - timedelta(minutes=60) < until <= closes - timedelta(minutes=15)
    clock.set_ahead(until - clock.machine_time())
    lab.run("pool", "reclaim", "--due")
    assert lab.state() == "draining" and lab.power("ml-09") == "poweredOn"
    assert not lab.run("pool", "reclaim", "--due")["changed"], "it is not given twice in a night"
    lab.run("rotate", "day", "--yes")
    assert lab.power("ml-09") == "poweredOff"


def test_a_return_goes_on_whatever_is_the_matter_with_the_book_of_the_pool(lab: PoolNight) -> None:
    make(lab, runs=False)
    lab.run("rotate", "night", "--policy", lab.policy("give", "{vm: ml-09}"), "--yes")
    lab.run("pool", "reclaim", "--due")
    assert lab.state() == "serving"
    (lab.directory / "state" / "pools.sqlite").write_bytes(b"no database at all" * 500)
    assert "what nights have to do with pools of lent GPUs is not known" in lab.text("rotate", "status")
    found = CliRunner().invoke(app, ["rotate", "day", "--yes", *lab.where])
    assert found.exit_code == 0, found.output
    assert "lent GPUs were not taken back before their servers stop" in " ".join(found.output.split())
    assert lab.power("ml-09") == "poweredOff"
