"""Nights that take servers of a pool, whose clients are programs that really run: told, cut off, killed on the way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuops import clock
from gpuops.cli import opening
from gpuops.cli.app import app
from gpuops.execute.site import Site
from gpuops.sim.wire import ready_file
from tests.cli.workloads.test_pool_guests import POOL, TypedPool
from tests.pool_guests import PASSWORD, SERVERS, USER, loopback_text, pool_world

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

POLICY = """
version: 1
name: lending
windows: any
pools:
  - name: lenders
    parked: true
    owner: none
    select: {name: gpu-*}
    idle: {cpu_below_mhz: 500}
lending: [{pool: lab, by_night: take-back, grace: 5m}]
ml:
  queue: [{vm: night-01}]
  stop: {grace_s: 0}
"""


class PoolNights:
    """The command line pointed at the guests: two servers, which lend all to two clients, and an ML VM that is off."""

    def __init__(self, typed: TypedPool) -> None:
        self.typed = typed
        self.policy = typed.file.with_name("policy.yaml")
        self.policy.write_text(POLICY, encoding="utf-8")
        self.night = ("rotate", "night", "--policy", str(self.policy), "--yes")
        typed.run("create", "--file", str(typed.file))
        for client in ("ds-01", "ds-02"):
            typed.run("lend", "--client", client, "--memory", "40GiB", "--for", "2h")

    def run(self, *words: str) -> dict[str, Any]:
        found = CliRunner().invoke(app, [*words, *self.typed.where, "--output", "json"])
        assert found.exit_code == 0, found.output
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    def power(self) -> dict[str, str]:
        return {vm.name: str(vm.power) for vm in self.typed.world.inventory().vms.values()}

    def pool(self) -> dict[str, Any]:
        return dict(self.typed.run("show")["pools"][0])

    def states(self) -> dict[str, str]:
        return {each["name"]: each["state"] for each in self.pool()["servers"]}

    def clients(self) -> dict[str, list[str]]:
        """States of the open leases, by client."""
        found: dict[str, list[str]] = {}
        for each in self.pool()["leases"]:
            found.setdefault(each["client"], []).append(each["state"])
        return {name: sorted(states) for name, states in found.items()}

    def taken(self) -> str:
        """The server that the night has."""
        [name] = [name for name in SERVERS if self.power()[name] == "suspended"]
        return name


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolNights]:
    secret = tmp_path / "guest.password"
    secret.write_text(PASSWORD, encoding="utf-8")
    secret.chmod(0o600)
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", USER)
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD_FILE", str(secret))
    program, file, ready = tmp_path / "loopback.yaml", tmp_path / "pool-file.yaml", tmp_path / "ready.json"
    program.write_text(loopback_text(), encoding="utf-8")
    file.write_text(POOL.replace("PROGRAM", str(program)), encoding="utf-8")
    ahead = clock.wall_clock() - clock.machine_time()
    with pool_world(tmp_path, ml=["night-01"]) as world:
        ready_file.write(ready, ready_file.of(world.server))
        yield PoolNights(TypedPool(world, ("--vcenter", f"sim@{ready}"), file))
    clock.set_ahead(ahead)


def later(seconds: float) -> None:
    clock.set_ahead(clock.wall_clock() - clock.machine_time() + timedelta(seconds=seconds))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that commands of this process paused for, which pass at once."""
    paused: list[float] = []
    opened = opening.open_site

    def pause(seconds: float) -> None:
        paused.append(seconds)
        later(seconds)

    @contextmanager
    def opened_with_pause(*words: Any, **options: Any) -> Iterator[Site]:
        with opened(*words, **options) as site:
            site.pause = pause
            yield site

    monkeypatch.setattr(opening, "open_site", opened_with_pause)
    return paused


def test_a_client_is_cut_off_before_its_server_is_taken_and_goes_on_when_it_is_back(
    nights: PoolNights, at_once: list[float]
) -> None:
    world = nights.typed.world
    used = {name: world.hold(name, 100) for name in ("ds-01", "ds-02")}
    nights.run(*nights.night)
    assert 240 < sum(at_once) < 450
    assert nights.power()["night-01"] == "poweredOn"
    taken = nights.taken()
    [waits] = [name for name, states in nights.clients().items() if states == ["waiting"]]
    assert used[waits].end() == "0 cut off"
    [goes_on] = [name for name in used if name != waits]
    assert world.use(goes_on, "ALLOC 200") == ["0 OK", "0 OK 300"], "its server was not needed"
    nights.run("rotate", "day", "--yes")
    assert nights.power()[taken] == "poweredOn" and nights.power()["night-01"] == "poweredOff"
    nights.typed.run("reclaim", "--due")
    assert nights.states() == dict.fromkeys(SERVERS, "serving")
    assert nights.clients() == {"ds-01": ["lent"], "ds-02": ["lent"]}
    assert world.use(waits, "ALLOC 40960", "ALLOC 1") == ["0 OK", "0 OK 40960", "0 NO memory"]


@pytest.mark.parametrize("again", [True, False], ids=["begun-again", "never-again"])
def test_a_night_that_is_killed_while_it_waits_loses_no_server(
    nights: PoolNights, at_once: list[float], again: bool
) -> None:
    command = [sys.executable, "-m", "gpuops", *nights.night, *nights.typed.where]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while "draining" not in nights.states().values():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.2)
    process.kill()
    assert process.wait() == -9
    assert {nights.power()[name] for name in SERVERS} == {"poweredOn"}
    assert nights.clients() in (
        {"ds-01": ["ending", "waiting"], "ds-02": ["lent"]},
        {"ds-01": ["lent"], "ds-02": ["ending", "waiting"]},
    )
    later(301)
    nights.typed.run("reclaim", "--due")
    assert sorted(map(str, nights.clients().values())) == ["['lent']", "['waiting']"]
    if again:
        nights.run(*nights.night)
        assert not at_once, "nobody has anything of it any more"
        taken = nights.taken()
        nights.run("rotate", "day", "--yes")
        assert nights.power()[taken] == "poweredOn"
    else:
        later(12 * 3600)
    nights.typed.run("reclaim", "--due")
    assert nights.states() == dict.fromkeys(SERVERS, "serving")
