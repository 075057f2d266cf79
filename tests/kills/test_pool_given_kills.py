"""kill -9 of the return of a night that has a server lend, at each effect, and a pool that keeps it waiting: desktops
come back all the same, and the leases of the server end."""

from __future__ import annotations

import fcntl
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
from gpuops.cli.app import app
from gpuops.execute.pool import call, guest_work
from gpuops.sim.wire import ready_file
from tests.cli.workloads.test_pool_guests import POOL, TypedPool
from tests.pool_guests import PASSWORD, SERVERS, USER, loopback_text, pool_world

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SERVER, DESKTOPS, CLIENT = "night-01", SERVERS, "ds-01"
POLICY = """
version: 1
name: giving
windows: any
pools:
  - name: office
    parked: true
    owner: none
    select: {name: gpu-*}
    idle: {cpu_below_mhz: 500}
lending: [{pool: lab, by_night: give, grace: 5m}]
ml:
  queue: [{vm: night-01}]
  stop: {grace_s: 0}
"""


class GivenNights:
    """The command line pointed at the guests: two desktops, and a server that lends by night alone, to one client."""

    def __init__(self, typed: TypedPool) -> None:
        self.typed = typed
        self.policy = typed.file.with_name("policy.yaml")
        self.policy.write_text(POLICY, encoding="utf-8")
        typed.run("create", "--file", str(typed.file))

    def run(self, *words: str) -> dict[str, Any]:
        found = CliRunner().invoke(app, [*words, *self.typed.where, "--output", "json"])
        assert found.exit_code == 0, found.output
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    def power(self) -> dict[str, str]:
        return {vm.name: str(vm.power) for vm in self.typed.world.inventory().vms.values()}

    def begin(self) -> None:
        """A night that has begun, in which the client uses the server."""
        clock.set_ahead(clock.wall_clock() - clock.machine_time() + timedelta(seconds=61))
        self.run("rotate", "night", "--policy", str(self.policy), "--yes")
        assert self.power()[SERVER] == "poweredOn" and "suspended" in [self.power()[name] for name in DESKTOPS]
        self.typed.run("reclaim", "--due")
        lent = self.typed.run("lend", "--client", CLIENT, "--memory", "40GiB", "--for", "2h")
        assert [each["state"] for each in lent["leases"]] == ["lent"]
        assert self.typed.world.use(CLIENT, "ALLOC 100") == ["0 OK", "0 OK 100"]

    def killed_after(self, effects: int, *words: str) -> bool:
        """Whether a process of its own was killed once vCenter had applied so many effects of it."""
        ledger = self.typed.world.server.world.ledger
        before = len(ledger)
        command = [sys.executable, "-m", "gpuops", *words, *self.typed.where]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(ledger) - before < effects:
            time.sleep(0.002)
        process.kill()
        return process.wait() == -9

    def check(self) -> None:
        """Every desktop runs, the server is off, and nobody has anything of it."""
        power = self.power()
        assert {power[name] for name in DESKTOPS} == {"poweredOn"} and power[SERVER] == "poweredOff"
        self.typed.run("reclaim", "--due")
        [pool] = self.typed.run("show")["pools"]
        assert [each["state"] for each in pool["servers"]] == ["dead"]
        assert [(each["state"], each["shares"]) for each in pool["leases"]] == [("waiting", [])]
        assert self.typed.world.kept(CLIENT) == []
        self.typed.run("return", "--client", CLIENT)


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GivenNights]:
    secret = tmp_path / "guest.password"
    secret.write_text(PASSWORD, encoding="utf-8")
    secret.chmod(0o600)
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", USER)
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD_FILE", str(secret))
    program, file, ready = tmp_path / "loopback.yaml", tmp_path / "pool-file.yaml", tmp_path / "ready.json"
    program.write_text(loopback_text(), encoding="utf-8")
    file.write_text(POOL.replace("PROGRAM", str(program)).replace(", ".join(SERVERS), SERVER), encoding="utf-8")
    ahead = clock.wall_clock() - clock.machine_time()
    with pool_world(tmp_path, ml=[SERVER]) as world:
        ready_file.write(ready, ready_file.of(world.server))
        yield GivenNights(TypedPool(world, ("--vcenter", f"sim@{ready}"), file))
    clock.set_ahead(ahead)


@pytest.mark.drawn_cases(2)
@pytest.mark.parametrize("finish", [("rotate", "day"), ("rotate", "restore")], ids=["day", "restore"])
def test_a_return_that_is_killed_anywhere_is_finished_and_the_leases_of_its_server_are_over(
    nights: GivenNights, finish: tuple[str, str]
) -> None:
    for effects in range(1, 40):
        nights.begin()
        killed = nights.killed_after(effects, *finish, "--yes")
        nights.typed.world.until_quiet()
        if killed:
            nights.run("rotate", "resume", "--yes")
            nights.run("rotate", "day", "--yes")  # a return that had not begun is none to resume
        nights.check()
        if not killed:
            break
    assert 5 < effects < 39, "each effect was a moment to be killed at"


IMPATIENT = """
import sys
from datetime import timedelta
from gpuops.cli.app import main
from gpuops.execute.pool import by_night

by_night.LOOK = timedelta(seconds=3)
sys.argv = ["gpuops", *sys.argv[1:]]
main()
"""


def test_a_return_goes_on_while_another_process_works_in_the_guests_of_the_pool(
    nights: GivenNights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "state"))
    nights.typed.run("create", "--file", str(nights.typed.file))
    nights.begin()
    [lock] = [each for each in (tmp_path / "state").rglob("*-pool-lab*") if each.is_file()]
    with lock.open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        command = [sys.executable, "-c", IMPATIENT, "rotate", "day", "--yes", *nights.typed.where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "not done within 3 s" in done.stdout + done.stderr
        assert {nights.power()[name] for name in DESKTOPS} == {"poweredOn"}
        [pool] = nights.typed.run("show")["pools"]
        assert [each["state"] for each in pool["servers"]] == ["draining"], "the book is written first"
    nights.check()


def test_a_call_that_waited_for_another_one_starts_no_server_anew_that_lends_meanwhile(
    nights: GivenNights, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = guest_work.alone

    @contextmanager
    def alone_after_another(*args: Any) -> Iterator[Any]:
        monkeypatch.setattr(call, "alone", alone)
        nights.typed.run("reclaim", "--due")
        nights.typed.run("lend", "--client", CLIENT, "--memory", "40GiB", "--for", "2h")
        with alone(*args) as still_alone:
            yield still_alone

    nights.run("rotate", "night", "--policy", str(nights.policy), "--yes")
    monkeypatch.setattr(call, "alone", alone_after_another)
    nights.typed.run("reclaim", "--due")
    assert nights.typed.world.use(CLIENT, "ALLOC 100") == ["0 OK", "0 OK 100"]
    assert not nights.typed.run("reclaim", "--due")["changed"], "no session was lost"
