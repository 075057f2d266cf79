"""`gpuops pool` as typed, with servers and clients that are guests which run real programs; and killed on its way."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.errors import Locked
from gpuops.execute.pool import guest_work
from gpuops.sim.wire import ready_file
from tests.execute.conftest import postgresql as postgresql
from tests.pool_guests import NETWORK, PASSWORD, SERVERS, USER, PoolWorld, loopback_text, pool_world

POOL = f"""
version: 1
name: lab
network: {NETWORK}
program: PROGRAM
servers: [{", ".join(SERVERS)}]
grace: 1m
"""


@dataclass(frozen=True)
class TypedPool:
    """The command line pointed at the guests."""

    world: PoolWorld
    where: tuple[str, ...]
    file: Path

    def words(self, *words: str) -> list[str]:
        return ["pool", *words, *self.where]

    def run(self, *words: str, exit_code: int = 0) -> Any:
        """The document of the answer."""
        found = CliRunner().invoke(app, self.words(*words, "--output", "json"))
        assert found.exit_code == exit_code, found.output
        assert PASSWORD not in found.output
        return json.loads(found.stdout)

    def killed_at(self, script: int, *words: str) -> bool:
        """Whether a process of its own was killed by SIGKILL when so many scripts had been started in guests."""
        before = self.scripts()
        command = [sys.executable, "-m", "gpuops", *self.words(*words)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and self.scripts() - before < script:
            time.sleep(0.005)
        process.kill()
        return process.wait() == -9

    def scripts(self) -> int:
        return sum(entry.method == "StartProgramInGuest" for entry in list(self.world.server.world.ledger))

    def in_guests(self) -> list[str]:
        """What the pool has in all guests."""
        return [each for name in self.world.guests for each in self.world.kept(name)]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TypedPool]:
    secret = tmp_path / "guest.password"
    secret.write_text(PASSWORD, encoding="utf-8")
    secret.chmod(0o600)
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", USER)
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD_FILE", str(secret))
    program = tmp_path / "loopback.yaml"
    program.write_text(loopback_text(), encoding="utf-8")
    file = tmp_path / "pool-file.yaml"
    file.write_text(POOL.replace("PROGRAM", str(program)), encoding="utf-8")
    with pool_world(tmp_path) as world:
        ready = tmp_path / "ready.json"
        ready_file.write(ready, ready_file.of(world.server))
        yield TypedPool(world, ("--vcenter", f"sim@{ready}"), file)


@pytest.mark.long
def test_a_client_that_is_lent_a_share_connects_is_limited_and_is_cut_off_when_it_is_returned(typed: TypedPool) -> None:
    typed.run("create", "--file", str(typed.file))
    answer = typed.run("lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h")
    assert answer["warnings"] == [] and answer["failed"] == []
    assert typed.world.use("ds-01", "ALLOC 8000", "ALLOC 193", "ALLOC 192") == [
        "0 OK", "0 OK 8000", "0 NO memory", "0 OK 8192",
    ]  # fmt: skip
    held = typed.world.hold("ds-01", 100)
    typed.run("return", "--client", "ds-01")
    assert held.end() == "0 cut off"
    assert typed.in_guests() == []


@pytest.mark.long
def test_more_gpus_than_the_program_lends_to_a_client_are_refused_and_nothing_is_booked(typed: TypedPool) -> None:
    program = typed.file.parent / "loopback.yaml"
    program.write_text(loopback_text() + "\nmost_shares: 1\n", encoding="utf-8")
    typed.run("create", "--file", str(typed.file))
    wanted = ("lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h", "--gpus", "2")
    [refused] = typed.run(*wanted, exit_code=3)["rejections"]
    assert (refused["subject"], refused["reason"]) == ("ds-01", "loopback lends 1 GPU to a client, not 2")
    assert refused["next"].startswith("ask for fewer GPUs")
    assert typed.run("show", "--ended", "10")["pools"][0]["leases"] == []
    typed.run(*wanted[:-2])


@pytest.mark.long
def test_a_server_that_lends_keeps_its_host_until_it_is_drained(typed: TypedPool) -> None:
    typed.run("create", "--file", str(typed.file))
    typed.run("lend", "--client", "ds-01", "--memory", "40GiB", "--for", "1h")

    def told() -> str:
        found = CliRunner().invoke(app, ["readiness", *typed.where])
        assert found.exit_code == 0, found.output
        return " ".join(found.output.split())

    both = f"{SERVERS[0]}, {SERVERS[1]} cannot leave it while running: lends its GPUs over the network (pool lab)"
    assert both in told()
    assert f"gpuops pool reclaim --server {SERVERS[0]} drains it" in told()
    for name in SERVERS:
        typed.run("reclaim", "--server", name, "--grace", "0", "--yes")
    assert "lends its GPUs" not in told()
    assert typed.in_guests() == []
    typed.run("reclaim", "--server", SERVERS[1], "--again")
    assert f"{SERVERS[1]} cannot leave it while running: lends its GPUs" in told()
    assert f"gpuops pool reclaim --server {SERVERS[1]} drains it" in told()


@pytest.mark.long
def test_the_leases_of_a_dead_server_go_on_at_another(typed: TypedPool) -> None:
    typed.run("create", "--file", str(typed.file))
    typed.run("lend", "--client", "ds-01", "--memory", "40GiB", "--for", "1h")
    [share] = [each for name in SERVERS for each in typed.world.kept(name) if "/port-" in each]
    dead = next(name for name in SERVERS if typed.world.kept(name))
    other = next(name for name in SERVERS if name != dead)
    guest = typed.world.guests[dead]
    guest.wait(guest.vm.PowerOffVM_Task())
    typed.run("reclaim", "--due")
    assert [Path(each).name for each in typed.world.kept(other) if "/port-" in each] == [Path(share).name]
    assert typed.world.use("ds-01", "ALLOC 40000") == ["0 OK", "0 OK 40000"]
    found = json.loads(CliRunner().invoke(app, typed.words("show", "--output", "json")).stdout)
    assert "dead" in json.dumps(found)


@pytest.mark.long
def test_a_lease_of_a_suspended_server_keeps_nobody_from_the_other_server_that_it_had(typed: TypedPool) -> None:
    world = typed.world
    typed.run("create", "--file", str(typed.file))
    typed.run("lend", "--client", "ds-01", "--memory", "40GiB", "--gpus", "2", "--for", "1h")
    guest = world.guests["gpu-01"]
    guest.wait(guest.vm.SuspendVM_Task())
    for _ in range(2):
        [failed] = typed.run("reclaim", "--due", exit_code=4)["failed"]
        assert "gpu-01 does not run" in failed
    [pool] = typed.run("show")["pools"]
    [broken] = [each for each in pool["leases"] if each["state"] == "broken"]
    assert [each["server"] for each in broken["shares"]] == ["gpu-01"]
    typed.run("lend", "--client", "ds-02", "--memory", "40GiB", "--for", "1h", exit_code=4)
    assert world.use("ds-02", "ALLOC 40960") == ["0 OK", "0 OK 40960"]
    guest.wait(guest.vm.PowerOnVM_Task(None))
    typed.run("reclaim", "--due")
    assert "gpu-01" not in [
        share["server"] for each in typed.run("show")["pools"][0]["leases"] for share in each["shares"]
    ]


def test_a_server_is_marked_before_a_client_is_let_in_so_that_no_night_suspends_it(typed: TypedPool) -> None:
    typed.run("create", "--file", str(typed.file))
    for name in SERVERS:
        typed.run("reclaim", "--server", name)
    ledger = typed.world.server.world.ledger
    before = len(list(ledger))
    typed.run("reclaim", "--server", "gpu-01", "--again")
    methods = [entry.method for entry in list(ledger)[before:]]
    assert methods.index("SetField") < methods.index("StartProgramInGuest")


@pytest.mark.long
def test_two_machines_with_one_book_go_on_with_what_the_other_began_and_wait_for_each_other(
    typed: TypedPool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUOPS_JOURNAL_URL", request.getfixturevalue("postgresql").database())

    def on(machine: str) -> TypedPool:
        monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / machine))
        return typed

    on("a").run("create", "--file", str(typed.file))
    assert on("a").killed_at(2, "lend", "--client", "ds-01", "--memory", "40GiB", "--for", "1h")
    on("b").run("reclaim", "--due")
    assert typed.world.use("ds-01", "ALLOC 40960", "ALLOC 1") == ["0 OK", "0 OK 40960", "0 NO memory"]
    # at once on both: one waits, or not, for what the other gives back
    processes = []
    for machine, client in (("a", "ds-02"), ("b", "ds-01")):
        verb = ["lend", "--client", client, "--memory", "40GiB", "--gpus", "2", "--for", "1h"]
        words = on(machine).words(*(verb if client == "ds-02" else ["return", "--client", client]))
        processes.append(subprocess.Popen([sys.executable, "-m", "gpuops", *words], stdout=subprocess.DEVNULL))
    assert [each.wait(120) for each in processes] == [0, 0]
    on("a").run("reclaim", "--due")
    told = typed.world.use("ds-02", "ALLOC 40960")
    assert told == ["0 OK", "1 OK", "0 OK 40960", "1 OK 40960"]
    assert typed.world.kept("ds-01") == []
    on("b").run("return", "--client", "ds-02")
    assert typed.in_guests() == []


@pytest.mark.long
def test_a_server_that_leaves_its_pool_is_stopped(typed: TypedPool) -> None:
    typed.run("create", "--file", str(typed.file))
    guests, servers = typed.world.pool(), {name: typed.world.pool_server(name) for name in SERVERS}
    assert {guests.health(each).condition.value for each in servers.values()} == {"serves"}
    text = typed.file.read_text(encoding="utf-8")
    typed.file.write_text(text.replace(f"[{', '.join(SERVERS)}]", f"[{SERVERS[0]}]"), encoding="utf-8")
    assert typed.run("create", "--file", str(typed.file))["gone"] == [SERVERS[1]]
    assert [guests.health(each).condition.value for each in servers.values()] == ["serves", "dead"]


@pytest.mark.long
def test_whoever_is_alone_no_more_stops_at_once(typed: TypedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise Locked("another machine may work in the guests")

    @contextmanager
    def not_for_long(*_: object) -> Iterator[Callable[[], None]]:
        yield lost

    typed.run("create", "--file", str(typed.file))
    monkeypatch.setattr(guest_work, "alone", not_for_long)
    lend, before = ("lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h"), typed.scripts()
    assert CliRunner().invoke(app, typed.words(*lend)).exit_code == Locked.exit_code
    assert typed.scripts() == before


@pytest.mark.long
def test_one_process_at_a_time_works_in_the_guests_of_a_pool(
    typed: TypedPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "state"))
    typed.run("create", "--file", str(typed.file))
    monkeypatch.setattr(guest_work, "WAIT_S", 0.0)
    [lock] = [each for each in (tmp_path / "state").rglob("*-pool-lab*") if each.is_file()]
    lend, before = ("lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h"), typed.scripts()
    with lock.open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        found = CliRunner().invoke(app, typed.words(*lend))
    assert found.exit_code == Locked.exit_code, found.output
    assert typed.scripts() == before
    typed.run("reclaim", "--due")
    assert typed.world.use("ds-01", "PING") == ["0 OK", "0 OK 0"], "what was decided is done by the next call"


@pytest.mark.long
@pytest.mark.parametrize("script", range(1, 4))
def test_what_a_killed_lend_has_set_up_is_taken_back_by_a_return(typed: TypedPool, script: int) -> None:
    """Nobody enables it once more before: what may be there is written down before it is made."""
    typed.run("create", "--file", str(typed.file))
    assert typed.killed_at(script, "lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h")
    typed.world.until_quiet()  # a script goes on without its caller
    typed.run("return", "--client", "ds-01")
    assert typed.in_guests() == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("script", range(1, 4))
def test_a_lease_is_enabled_and_taken_back_whatever_script_gpuops_is_killed_at(typed: TypedPool, script: int) -> None:
    """Three scripts enable a lease of one share: key, server, environment; two take it back."""
    typed.run("create", "--file", str(typed.file))
    lend = ("lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h")
    assert typed.killed_at(script, *lend)
    typed.run("reclaim", "--due")
    assert typed.world.use("ds-01", "ALLOC 8192", "ALLOC 1") == ["0 OK", "0 OK 8192", "0 NO memory"]
    typed.killed_at(min(script, 2), "return", "--client", "ds-01")
    typed.run("reclaim", "--due")
    assert typed.in_guests() == []
    [found] = typed.run("show")["pools"]
    assert [lease for lease in found["leases"] if lease["state"] in ("lent", "ending")] == []
