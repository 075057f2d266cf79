"""`gpuops cluster run` and `bench` as typed, on simulated guests that run real programs; and killed on its way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.sim.wire import sim_client
from tests.cluster_guests import NAME, PASSWORD, USER, ClusterGuests, cluster_guests, marked_processes, needs_mpi
from tests.waiting import wait_until

pytestmark = needs_mpi


@dataclass(frozen=True)
class Typed:
    """The command line pointed at the guests."""

    guests: ClusterGuests
    ready: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def words(self, verb: str, *options: str) -> list[str]:
        where = ["--vcenter", f"sim@{self.ready}", "--ssh-port", str(self.guests.ssh_port)]
        return ["cluster", verb, NAME, *where, *options]

    def run(self, verb: str, *options: str) -> Result:
        completed = CliRunner().invoke(app, self.words(verb, *options))
        assert PASSWORD not in completed.output
        return completed

    def begun(self, *options: str) -> subprocess.Popen[str]:
        """The same as a process of its own, which prints."""
        command = [sys.executable, "-m", "gpuops", *self.words("run", *options)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typed]:
    secret = tmp_path / "guest.password"
    secret.write_text(PASSWORD, encoding="utf-8")
    secret.chmod(0o600)
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", USER)
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD_FILE", str(secret))
    with cluster_guests(tmp_path) as guests:
        ready = tmp_path / "ready.json"
        sim_client.write(ready, sim_client.of(guests.server))
        typed = Typed(guests, ready)
        yield typed
        for process in typed.processes:  # one that a failed test has left would keep the cluster from the next one
            process.kill()
            process.communicate()


def wait_for_begun(process: subprocess.Popen[str]) -> None:
    """Until rank 0 has printed; Open MPI may warn of something before."""
    assert process.stdout is not None
    lines = list(takewhile(lambda line: line.strip() != "begun", process.stdout))
    assert process.poll() is None, lines


def test_a_dry_run_shows_the_command_lines_and_starts_nothing(typed: Typed) -> None:
    plan = typed.run("run", "--dry-run", "--transport", "tcp", "--", "hostname")
    assert plan.exit_code == 0, plan.output
    assert f"{NAME}-00: mpirun -np 4 --hostfile" in plan.stdout and "nothing was started" in plan.stdout
    assert all(not typed.guests.server.world.guests.processes(guest.vm._moId)[1:] for guest in typed.guests.guests)


@pytest.mark.long
def test_what_rank_0_prints_is_shown_harmless_and_the_exit_code_is_that_of_the_program(typed: Typed) -> None:
    program = r"printf 'a\033[2Jb\tc\r10%%\n\377 end'; [ $OMPI_COMM_WORLD_RANK = 3 ] && exit 9; true"
    cluster_run = typed.run("run", "--", "sh", "-c", program)
    assert cluster_run.exit_code == 9, cluster_run.output
    assert r"a\u{1b}[2Jb" in cluster_run.stdout and "\x1b" not in cluster_run.output
    assert "exit code 9 after" in cluster_run.stderr
    assert typed.guests.left() == []


@pytest.mark.long
def test_a_password_of_gpuops_that_the_program_prints_is_withheld(typed: Typed) -> None:
    cluster_run = typed.run("run", "--ranks", "1", "--", "printf", r"login %s%s\n", PASSWORD[:5], PASSWORD[5:])
    assert cluster_run.exit_code == 0, cluster_run.output
    assert "login [a password of gpuops, withheld]" in cluster_run.stdout


@pytest.mark.long
def test_as_json_the_output_is_on_stderr_and_the_document_on_stdout(typed: Typed) -> None:
    cluster_run = typed.run("run", "--output", "json", "--ranks", "2", "--", "echo", "to be seen")
    document = json.loads(cluster_run.stdout)
    assert (cluster_run.exit_code, document["end"]["exit_code"], document["end"]["left"]) == (0, 0, [])
    assert [member["ranks"] for member in document["launch"]["members"]] == [1, 1]
    assert cluster_run.stderr.count("to be seen") == 2


def test_more_ranks_than_gpus_are_refused_in_one_line(typed: Typed) -> None:
    refusal = typed.run("run", "--ranks", "5", "--", "true")
    assert (refusal.exit_code, refusal.stdout) == (3, "")
    next_move = "--ranks 4 is the maximum: each rank needs its own GPU"
    assert refusal.stderr == f"error: {NAME}: more ranks than GPUs: needs 5 GPUs, 4 there (next: {next_move})\n"


@pytest.mark.long
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_processes_of_every_guest(typed: Typed, number: int) -> None:
    process = typed.begun("--", "sh", "-c", "echo begun; exec sleep 600")
    wait_for_begun(process)
    assert len(marked_processes()) >= 4
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 143), errors
    assert "ending the processes in the 4 guests" in errors and "Traceback" not in errors
    assert typed.guests.left() == []


@pytest.mark.long
def test_what_a_killed_run_left_is_ended_and_removed_by_the_next(typed: Typed) -> None:
    process = typed.begun("--", "sh", "-c", "echo begun; exec sleep 600")
    wait_for_begun(process)
    process.kill()
    process.communicate()
    left_processes = marked_processes()
    assert left_processes and typed.guests.left()
    cluster_run = typed.run("run", "--", "true")
    assert cluster_run.exit_code == 0, cluster_run.output
    wait_until(lambda: not set(left_processes) & set(marked_processes()))
    assert typed.guests.left() == []


@pytest.mark.long
def test_bench_shows_tcp_beside_rdma_which_is_not_measured_here(typed: Typed) -> None:
    bench = typed.run("bench", "--sizes", "64KiB", "--nodes", "2,4", "--program", "mpi4py")
    assert bench.exit_code == 0, bench.output
    assert "rdma over 2 nodes: simulated: not measured" in bench.stdout
    assert "TCP is the loopback of one machine" in bench.stdout
    rows = [line.split() for line in bench.stdout.splitlines() if line.strip().startswith(("2 ", "4 "))]
    assert [(row[:3], row[5], row[6:]) for row in rows] == [
        (["2", "2", "65536"], "100%", ["-"] * 4),
        (["4", "4", "65536"], rows[1][5], ["-"] * 4),
    ]
    assert typed.guests.left() == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--nodes", "0"), "'0' is not a number of nodes"),
        (("--nodes", "2,x"), "'x' is not a number of nodes"),
        (("--sizes", "5"), "'5' is not a valid buffer size"),
        (("--transports", "tcp,ib"), "unknown transport 'ib'"),
        (("--nodes", "9", "--program", "osu"), " has 4"),
    ],
)
def test_bench_refuses_what_means_nothing(typed: Typed, options: tuple[str, ...], reason: str) -> None:
    refusal = typed.run("bench", *options)
    assert (refusal.exit_code, reason in refusal.stderr) == (2, True), refusal.output
    assert len(refusal.stderr.splitlines()) == 2
