"""`gpuops pool` as typed, with servers and clients that are guests which run real programs: bytes go from a client
process to a server process; hooks fail; gpuops is killed on its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.sim.wire import sim_client
from tests.execute.conftest import postgresql as postgresql
from tests.pool_guests import NETWORK, PASSWORD, SERVERS, USER, PoolWorld, loopback_text, pool_world
from tests.waiting import wait_until

POOL = f"""
version: 1
name: lab
network: {NETWORK}
program: PROGRAM
servers: [{", ".join(SERVERS)}]
grace: 1m
"""
LEND = ("lend", "--client", "ds-01", "--gpu-memory", "8GiB", "--for", "1h")
RETURN = ("return", "--client", "ds-01")
DUE = ("reclaim", "--due")


@dataclass(frozen=True)
class TypedPool:
    """The command line pointed at the guests."""

    world: PoolWorld
    where: tuple[str, ...]
    file: Path

    @property
    def program(self) -> Path:
        return self.file.with_name("loopback.yaml")

    def words(self, *words: str) -> list[str]:
        return ["pool", *words, *self.where]

    def run(self, *words: str, exit_code: int = 0) -> Any:
        """The document of the answer."""
        answer = CliRunner().invoke(app, self.words(*words, "--output", "json"))
        assert answer.exit_code == exit_code, answer.output
        assert PASSWORD not in answer.output
        return json.loads(answer.stdout)

    def killed_at(self, script: int, *words: str) -> bool:
        """Whether a process of its own was killed by SIGKILL when so many scripts had been started in guests."""
        before = self.scripts()
        command = [sys.executable, "-m", "gpuops", *self.words(*words)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: process.poll() is not None or self.scripts() - before >= script, every_s=0.005)
        process.kill()
        return process.wait() == -9

    def scripts(self) -> int:
        return sum(entry.method == "StartProgramInGuest" for entry in list(self.world.server.world.ledger))

    def in_guests(self) -> list[str]:
        """What the pool has in all guests."""
        return [name for guest in self.world.guests for name in self.world.kept(guest)]

    def leases(self) -> list[dict[str, Any]]:
        leases: list[dict[str, Any]] = self.run("show")["pools"][0]["leases"]
        return leases

    def share(self) -> Path:
        """The directory of the only share in the guest of gpu-01."""
        [path] = (self.world.home("gpu-01") / ".gpuops-pool").glob("*.0")
        return path


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
        sim_client.write(ready, sim_client.of(world.server))
        pool = TypedPool(world, ("--vcenter", f"sim@{ready}"), file)
        pool.run("create", "--file", str(file))
        yield pool


def test_bytes_go_from_a_client_to_the_server_that_is_granted_until_it_is_revoked(typed: TypedPool) -> None:
    answer = typed.run(*LEND)
    assert answer["warnings"] == [] and answer["failed"] == []
    assert typed.world.use("ds-01", "ECHO bytes", "ALLOC 8000", "ALLOC 193", "ALLOC 192") == [
        "0 OK bytes", "0 OK 8000", "0 NO memory", "0 OK 8192",
    ]  # fmt: skip
    connection = typed.world.hold("ds-01", 100)
    assert not typed.run(*DUE)["changed"], "its server serves it"
    typed.run(*RETURN)
    assert connection.end() == "0 cut off"
    assert typed.in_guests() == []


@pytest.mark.long
def test_a_share_is_served_to_its_client_only_and_ends_by_itself(typed: TypedPool) -> None:
    typed.run(*LEND[:-1], "1m")
    typed.run("lend", "--client", "ds-02", "--gpu-memory", "8GiB", "--for", "1h")
    first, second = (typed.world.home(name) / ".gpuops-pool" / "env" for name in ("ds-01", "ds-02"))
    second.resolve().write_text(first.read_text())
    assert typed.world.use("ds-02", "PING") == ["0 cut off"]
    assert typed.world.use("ds-01", "hold") == ["0 cut off"], "after a minute"


@pytest.mark.long
@pytest.mark.parametrize("guest", ["gpu-01", "ds-01"])
def test_a_grant_that_fails_is_named_and_done_by_the_next_command(typed: TypedPool, guest: str) -> None:
    typed.world.fail("grant", guest)
    for words in (LEND, DUE):
        [failed] = typed.run(*words, exit_code=4)["failed"]
        assert guest in failed and "grant fails" in failed
    assert [(lease["state"], lease["enabled"]) for lease in typed.leases()] == [("lent", None)]
    typed.world.fail("grant", guest, fails=False)
    typed.run(*DUE)
    assert typed.world.use("ds-01", "PING") == ["0 OK 0"]


@pytest.mark.long
def test_what_a_failed_grant_has_made_is_revoked(typed: TypedPool) -> None:
    typed.world.fail("grant", "ds-01")
    typed.run(*LEND, exit_code=4)
    typed.run(*RETURN)
    assert typed.in_guests() == [] and typed.leases() == []


@pytest.mark.long
def test_a_share_whose_revoke_fails_is_lent_to_nobody_until_it_is_revoked(typed: TypedPool) -> None:
    typed.run(*LEND[:-3], "40GiB", "--for", "1h")
    typed.world.fail("revoke", "gpu-01")
    for words in (RETURN, DUE):
        [failed] = typed.run(*words, exit_code=4)["failed"]
        assert "revoke fails" in failed
    lend_other = ("lend", "--client", "ds-02", "--gpu-memory", "40GiB", "--gpus", "2", "--for", "1h")
    [refused] = typed.run(*lend_other, exit_code=3)["rejections"]
    assert refused["reason"] == "GPUs of pool lab with 40960 MiB of idle memory: needs 2, 1 there"
    typed.world.fail("revoke", "gpu-01", fails=False)
    typed.run(*DUE)
    typed.run(*lend_other)


@pytest.mark.long
def test_a_server_whose_health_fails_is_dead_and_its_leases_end_and_are_revoked(typed: TypedPool) -> None:
    typed.run(*LEND)
    connection = typed.world.hold("ds-01", 100)
    typed.world.fail("health", "gpu-01")
    answer = typed.run(*DUE)
    assert [(server["name"], server["state"]) for server in answer["servers"]] == [("gpu-01", "dead")]
    assert (
        answer["servers"][0]["because"].startswith("cannot serve: ") and "no driver" in answer["servers"][0]["because"]
    )
    assert [lease["state"] for lease in answer["leases"]] == ["ended"]
    assert connection.end() == "0 cut off" and typed.in_guests() == []
    assert typed.run(*LEND)["leases"][0]["shares"][0]["server"] == "gpu-02"
    typed.world.fail("health", "gpu-01", fails=False)
    typed.run("reclaim", "--server", "gpu-01", "--again")
    assert not typed.run(*DUE)["changed"]


@pytest.mark.long
def test_a_server_whose_health_is_unknown_keeps_its_leases(typed: TypedPool) -> None:
    typed.run(*LEND)
    guest = typed.world.guests["gpu-01"]
    program = typed.program.read_text()
    typed.program.write_text(program.replace("version: 2", "version: 1"))
    answer = typed.run(*DUE)
    assert "version: should be 2" in answer["warnings"][0]
    assert [lease["state"] for lease in typed.leases()] == ["lent"]
    typed.program.write_text(program)
    guest.wait(guest.vm.PowerOffVM_Task())
    assert [lease["state"] for lease in typed.run(*DUE)["leases"]] == ["ended"]


@pytest.mark.long
def test_a_lease_that_its_server_no_longer_serves_ends(typed: TypedPool) -> None:
    typed.run(*LEND)
    os.kill(int((typed.share() / "pid").read_text()), signal.SIGKILL)
    typed.world.until_quiet()
    [lease] = typed.run(*DUE)["leases"]
    assert (lease["state"], lease["because"]) == ("ended", "server gpu-01 no longer serves it")
    assert typed.in_guests() == []


@pytest.mark.long
def test_a_share_that_the_book_lends_to_nobody_is_named(typed: TypedPool) -> None:
    typed.run(*LEND)
    home = typed.world.home("gpu-01") / ".gpuops-pool"
    (home / "stray.1").mkdir()
    (home / "stray.1" / "pid").write_text((typed.share() / "pid").read_text())
    (home / "port-21007").symlink_to("stray.1")
    [warning] = typed.run(*DUE)["warnings"]
    assert warning.startswith("lease stray uses 0 MiB of GPU 1 of gpu-01, but no share is lent to it there")


@pytest.mark.long
def test_more_memory_than_is_lent_is_named_with_the_command_that_ends_the_lease(typed: TypedPool) -> None:
    lease = typed.run(*LEND)["lease"]
    (typed.share() / "used").write_text("9000\n")
    [warning] = typed.run(*DUE)["warnings"]
    uses = f"lease {lease} uses 9000 MiB of GPU 0 of gpu-01, but only 8192 MiB are lent to it"
    assert warning == f"{uses}: gpuops pool return lab --client ds-01 ends the lease"
    typed.run(*RETURN)
    assert typed.in_guests() == []


@pytest.mark.long
def test_a_server_that_lends_keeps_its_host_until_it_is_drained(typed: TypedPool) -> None:
    typed.run(*LEND)

    def readiness() -> str:
        answer = CliRunner().invoke(app, ["readiness", *typed.where])
        assert answer.exit_code == 0, answer.output
        return " ".join(answer.output.split())

    assert f"{SERVERS[0]}, {SERVERS[1]} cannot leave it while running: lends its GPUs" in readiness()
    for name in SERVERS:
        typed.run("reclaim", "--server", name, "--grace", "0", "--yes")
    assert "lends its GPUs" not in readiness()
    assert typed.in_guests() == []


@pytest.mark.long
def test_a_lease_of_a_suspended_server_is_revoked_once_it_runs_again(typed: TypedPool) -> None:
    typed.run(*LEND[:-3], "40GiB", "--gpus", "2", "--for", "1h")
    guest = typed.world.guests["gpu-01"]
    guest.wait(guest.vm.SuspendVM_Task())
    for _ in range(2):
        [failed] = typed.run(*DUE, exit_code=4)["failed"]
        assert "gpu-01 does not run" in failed
    typed.run("lend", "--client", "ds-02", "--gpu-memory", "40GiB", "--for", "1h", exit_code=3)
    guest.wait(guest.vm.PowerOnVM_Task(None))
    typed.run(*DUE)
    typed.run("lend", "--client", "ds-02", "--gpu-memory", "40GiB", "--for", "1h")


@pytest.mark.long
def test_a_server_is_marked_before_a_client_is_let_in_so_that_no_night_suspends_it(typed: TypedPool) -> None:
    for name in SERVERS:
        typed.run("reclaim", "--server", name)
    before = len(list(typed.world.server.world.ledger))
    typed.run("reclaim", "--server", "gpu-01", "--again")
    typed.run(*LEND)
    methods = [entry.method for entry in list(typed.world.server.world.ledger)[before:]]
    assert methods.index("SetField") < methods.index("StartProgramInGuest")


@pytest.mark.long
def test_two_machines_with_one_book_go_on_with_what_the_other_began(
    typed: TypedPool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUOPS_JOURNAL_URL", request.getfixturevalue("postgresql").database())

    def on(machine: str) -> TypedPool:
        monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / machine))
        return typed

    on("a").run("create", "--file", str(typed.file))
    assert on("a").killed_at(1, *LEND)
    on("b").run(*DUE)
    assert typed.world.use("ds-01", "ALLOC 8192", "ALLOC 1") == ["0 OK 8192", "0 NO memory"]
    processes = []
    for machine, words in (("a", ("lend", "--client", "ds-02", *LEND[3:])), ("b", RETURN)):
        command = [sys.executable, "-m", "gpuops", *on(machine).words(*words)]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    assert [process.wait(120) in (0, 4) for process in processes] == [True, True]
    on("a").run(*DUE)
    assert typed.world.use("ds-02", "ALLOC 8192") == ["0 OK 8192"]
    assert typed.world.kept("ds-01") == []
    on("b").run("return", "--client", "ds-02")
    assert typed.in_guests() == []


@pytest.mark.long
@pytest.mark.parametrize("script", [1, 2])
def test_what_a_killed_lend_has_set_up_is_revoked_by_a_return(typed: TypedPool, script: int) -> None:
    assert typed.killed_at(script, *LEND)
    typed.run(*RETURN)
    assert typed.in_guests() == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("script", [1, 2])
def test_a_lease_is_granted_and_revoked_whatever_script_gpuops_is_killed_at(typed: TypedPool, script: int) -> None:
    """Two scripts grant a lease of one share, in the server and in the client; two revoke it."""
    assert typed.killed_at(script, *LEND)
    typed.run(*DUE)
    assert typed.world.use("ds-01", "ALLOC 8192", "ALLOC 1") == ["0 OK 8192", "0 NO memory"]
    typed.killed_at(script, *RETURN)
    typed.run(*DUE)
    assert typed.in_guests() == [] and typed.leases() == []


@pytest.mark.long
def test_a_dead_server_that_cannot_be_reached_frees_its_shares_once_it_is_off_and_is_revoked_before_it_lends_again(
    typed: TypedPool,
) -> None:
    typed.run(*LEND)
    guest = typed.world.guests["gpu-01"]
    for hook in ("health", "revoke"):
        typed.world.fail(hook, "gpu-01")
    for _ in range(2):
        [failed] = typed.run(*DUE, exit_code=4)["failed"]
        assert "revoke fails" in failed
        assert "if its guest stays unreachable, power gpu-01 off: its leases then end" in failed
    guest.wait(guest.vm.PowerOffVM_Task())
    typed.run(*DUE)
    assert typed.leases() == []
    assert typed.in_guests() != [], "what is on its disk comes back with it"
    guest.wait(guest.vm.PowerOnVM_Task(None))
    lend_again = ("reclaim", "--server", "gpu-01", "--again")
    refused = CliRunner().invoke(app, typed.words(*lend_again))
    assert refused.exit_code == 4 and "revoke fails" in refused.output
    assert [server["state"] for server in typed.run("show")["pools"][0]["servers"]] == ["dead", "serving"]
    for hook in ("health", "revoke"):
        typed.world.fail(hook, "gpu-01", fails=False)
    assert typed.run(*lend_again)["servers"][0]["state"] == "serving"
    assert typed.in_guests() == []


@pytest.mark.long
def test_a_dead_server_that_is_not_seen_keeps_its_shares_until_it_is_reported_dead(typed: TypedPool) -> None:
    typed.run(*LEND)
    for hook in ("health", "revoke"):
        typed.world.fail(hook, "gpu-01")
    typed.run(*DUE, exit_code=4)
    guest = typed.world.guests["gpu-01"]
    for begin in (guest.vm.PowerOffVM_Task, guest.vm.Destroy_Task):
        guest.wait(begin())
    answer = typed.run(*DUE, exit_code=4)
    assert [warning.split("gpuops ")[-1] for warning in answer["warnings"]] == [
        "pool reclaim lab --server gpu-01 --dead"
    ]
    assert [lease["enabled"] for lease in typed.leases()] == [None]
    typed.run("reclaim", "--server", "gpu-01", "--dead", "--yes")
    assert typed.leases() == []


@pytest.mark.long
def test_all_servers_are_asked_for_their_health_at_once(typed: TypedPool, tmp_path: Path) -> None:
    (tmp_path / "asked").mkdir()
    wait_for_both = (
        f'touch "{tmp_path}/asked/$SERVER_ADDRESS"; n=0; until [ $(ls "{tmp_path}/asked" | wc -l) -eq 2 ]; do'
    )
    waits = f"  {wait_for_both} n=$((n + 1)); [ $n -lt 50 ] || exit 1; sleep 0.1; done\n"
    typed.program.write_text(loopback_text().replace("\nhealth: |\n", f"\nhealth: |\n{waits}"), encoding="utf-8")
    assert not typed.run(*DUE)["changed"], "the health of one waits for the other"
