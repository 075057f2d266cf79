"""Programs over a cluster, started by a real mpirun in simulated guests that run real programs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.errors import Locked, Refused, StepFailed
from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.clusters import cluster_guests as guests
from gpuops.extras.clusters import cluster_runs, run_request
from gpuops.extras.clusters.cluster_runs import ClusterRun, cluster_bench, cluster_run, running_cluster
from gpuops.extras.clusters.launch import plan_launch
from gpuops.extras.clusters.run import alone_with, used_alone
from gpuops.extras.clusters.run_request import AllReduceProgram, BenchWish, Launcher, RunWish, Transport
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.vsphere.connection import Connection
from tests.cluster_guests import NAME, NODES, PASSWORD, USER, ClusterGuests, cluster_guests, marked_processes, needs_mpi
from tests.waiting import wait_until
from tests.wire.conftest import target_of


@dataclass
class Cluster:
    """The guests, and a site that reaches them."""

    guests: ClusterGuests
    site: Site
    heard: list[bytes]

    def run(self, *command: str, **options: Any) -> ClusterRun:
        wish = RunWish(command, ssh_port=self.guests.ssh_port, **options)
        return cluster_run(NAME, wish, self.site, self.heard.append, apply=True)

    @property
    def lines(self) -> list[str]:
        return sorted(b"".join(self.heard).decode().splitlines())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with (
        cluster_guests(tmp_path) as guests,
        Connection(replace(target_of(guests.server), guest=GuestLogin(USER, Secret(PASSWORD)))) as connection,
    ):
        yield Cluster(guests, Site(connection, tmp_path / "state", wall_clock), [])


@needs_mpi
def test_mpirun_starts_a_rank_in_each_guest_and_nothing_is_left(cluster: Cluster) -> None:
    cluster_run = cluster.run(
        "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK in $GPUOPS_GUEST_NAME; pwd", transport=Transport.TCP
    )
    assert cluster_run.end is not None and (cluster_run.end.exit_code, cluster_run.end.left) == (0, ()), cluster.lines
    assert [line for line in cluster.lines if line.startswith("rank")] == [
        f"rank {rank} in {NAME}-{rank:02}" for rank in range(NODES)
    ]
    assert cluster.guests.left() == []


@pytest.mark.long
@needs_mpi
def test_an_all_reduce_is_measured_over_one_two_and_four_nodes_and_rdma_is_never_called_measured(
    cluster: Cluster,
) -> None:
    wish = BenchWish((1, 2, 4), (4096, 1 << 20), (Transport.TCP, Transport.RDMA), ssh_port=cluster.guests.ssh_port)
    measured = cluster_bench(NAME, replace(wish, program=AllReduceProgram.MPI4PY), cluster.site)
    tcp = [cell for cell in measured.cells if cell.transport is Transport.TCP]
    assert [(cell.nodes, cell.ranks, cell.why_not) for cell in tcp] == [(1, 1, ""), (2, 2, ""), (4, 4, "")]
    assert all(time.seconds > 0 and time.wrong == 0 for cell in tcp for time in cell.times)
    assert [[time.size_bytes for time in cell.times] for cell in tcp] == [[4096, 1 << 20]] * 3
    rdma = [cell for cell in measured.cells if cell.transport is Transport.RDMA]
    assert [(cell.times, cell.why_not) for cell in rdma] == [((), "simulated: not measured")] * 3
    assert measured.simulated and measured.complete
    assert cluster.guests.left() == []


_OSU = """#!/bin/sh
echo "# OSU MPI Allreduce Latency Test"
echo "${2%%:*}             12.34"
"""


@pytest.mark.long
@needs_mpi
def test_a_program_that_measures_one_size_a_run_is_run_once_a_size(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "osu_allreduce"
    program.write_text(_OSU)
    program.chmod(0o755)
    commands = run_request.measuring_commands(AllReduceProgram.OSU, sizes := (4096, 1 << 20))
    in_place = tuple((str(program), *words) for _, *words in commands)
    monkeypatch.setattr(run_request, "measuring_commands", lambda *_: in_place)
    wish = BenchWish((1,), sizes, (Transport.TCP,), AllReduceProgram.OSU, ssh_port=cluster.guests.ssh_port)
    measured = cluster_bench(NAME, wish, cluster.site)
    [cell] = measured.cells
    assert [(time.size_bytes, time.seconds) for time in cell.times] == [(4096, 12.34e-6), (1 << 20, 12.34e-6)], cell


@pytest.mark.long
@needs_mpi
def test_a_program_that_fails_ends_the_run_with_its_code(cluster: Cluster) -> None:
    cluster_run = cluster.run("sh", "-c", "echo no data >&2; exit 7", ranks=1)
    assert cluster_run.exit_code == 7 and "no data" in cluster.lines
    assert cluster.guests.left() == []


@pytest.mark.long
@needs_mpi
def test_a_program_that_takes_too_long_is_ended_in_every_guest(cluster: Cluster) -> None:
    cluster_run = cluster.run("sleep", "600", limit_s=3)
    assert cluster_run.exit_code == 124
    assert cluster.guests.left() == []


@pytest.mark.long
@needs_mpi
def test_an_interrupt_ends_every_process_in_every_guest_and_removes_files_and_keys(cluster: Cluster) -> None:
    def pause(seconds: float) -> None:
        if b"here" in b"".join(cluster.heard):
            assert len(marked_processes()) > NODES
            raise KeyboardInterrupt
        threading.Event().wait(seconds)

    cluster.site.pause = pause
    with pytest.raises(KeyboardInterrupt):
        cluster.run("sh", "-c", "echo here; exec sleep 600")
    assert cluster.guests.left() == []


@pytest.mark.long
def test_an_interrupt_while_guests_are_prepared_leaves_nothing(
    without_ssh: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = Connection.wait_for_commands

    def interrupt(self: Connection, *arguments: Any) -> Any:
        monkeypatch.setattr(Connection, "wait_for_commands", waited)
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "wait_for_commands", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch_torchrun(without_ssh, "train.py")
    assert without_ssh.guests.left() == []


@pytest.mark.long
@needs_mpi
def test_keys_that_were_there_stay_as_they_are(cluster: Cluster) -> None:
    file = cluster.guests.root(1) / "root/.ssh/authorized_keys"
    file.parent.mkdir()
    file.write_text("ssh-ed25519 AAAA mine")  # without an end of line
    file.chmod(0o640)
    assert cluster.run("true").exit_code == 0
    assert (file.read_text().strip(), file.stat().st_mode & 0o777) == ("ssh-ed25519 AAAA mine", 0o640)


@pytest.fixture
def without_ssh(tmp_path: Path) -> Iterator[Cluster]:
    with (
        cluster_guests(tmp_path, ssh=False) as guests,
        Connection(replace(target_of(guests.server), guest=GuestLogin(USER, Secret(PASSWORD)))) as connection,
    ):
        yield Cluster(guests, Site(connection, tmp_path / "state", wall_clock), [])


@pytest.mark.long
def test_without_an_ssh_server_in_a_guest_it_is_said_and_nothing_is_left(without_ssh: Cluster) -> None:
    with pytest.raises(Refused, match=f"{NAME}-00: its guest has no key of an SSH server"):
        without_ssh.run("true")
    assert without_ssh.guests.left() == []


def test_what_cannot_run_is_refused_with_every_reason_and_starts_nothing(without_ssh: Cluster) -> None:
    cluster_run = without_ssh.run("true", ranks=5, transport=Transport.RDMA)
    reasons = [str(rejection) for rejection in cluster_run.plan.rejections]
    assert (cluster_run.exit_code, cluster_run.end) == (3, None)
    assert reasons[0] == f"{NAME}-00: it has no RDMA network card"
    assert reasons[-1] == f"{NAME}: more ranks than GPUs: needs 5 GPUs, 4 there"
    assert all(
        not without_ssh.guests.server.world.guests.processes(guest.vm._moId) for guest in without_ssh.guests.guests
    )


def test_while_the_cluster_is_changed_or_used_no_run_of_it_starts(without_ssh: Cluster) -> None:
    expected_message = rf"cluster {NAME} is in use: pid \d+ since .*, cluster delete, holds it"
    with alone_with(without_ssh.site, NAME, "cluster delete"), pytest.raises(Locked, match=expected_message):
        without_ssh.run("true")


def with_torchrun(cluster: Cluster, script: str) -> None:
    """A `torchrun` in every guest, which does that."""
    for rank in range(NODES):
        tool = cluster.guests.root(rank) / "root/torchrun"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o700)


def launch_torchrun(cluster: Cluster, *command: str, **options: Any) -> ClusterRun:
    """By that `torchrun`, which is on no path: as a command line of its own."""
    wish = RunWish(command, Launcher.TORCHRUN, **options)
    cluster_vms = running_cluster(NAME, cluster.site)
    plan = plan_launch(wish, cluster_vms, "0123456789abcdef")
    assert plan.launch is not None
    launch = replace(plan.launch, command_lines=tuple(f"./{line}" for line in plan.launch.command_lines))
    with used_alone(cluster.site, cluster_vms, "cluster run") as lease:
        return ClusterRun(NAME, plan, cluster_runs.run(launch, cluster.site, lease, cluster.heard.append))


@pytest.mark.long
def test_torchrun_is_started_in_every_guest_and_that_of_rank_0_is_shown(without_ssh: Cluster) -> None:
    with_torchrun(without_ssh, 'echo "$@" from $GPUOPS_GUEST_NAME; echo $NCCL_IB_DISABLE')
    cluster_run = launch_torchrun(without_ssh, "train.py", transport=Transport.TCP)
    address = without_ssh.guests.guests[0].vm.guest.ipAddress
    assert cluster_run.exit_code == 0
    words = f"--nnodes=4 --nproc-per-node=1 --node-rank=0 --master-addr={address} --master-port=29500 train.py"
    assert without_ssh.lines == [f"{words} from {NAME}-00", "1"]
    assert without_ssh.guests.left() == []


@pytest.mark.long
def test_a_node_whose_launcher_fails_ends_the_others_and_is_named(without_ssh: Cluster) -> None:
    with_torchrun(without_ssh, f"[ $GPUOPS_GUEST_NAME != {NAME}-02 ] || exit 5; exec sleep 600")
    cluster_run = launch_torchrun(without_ssh, "train.py")
    assert cluster_run.end is not None and (cluster_run.exit_code, cluster_run.end.failed_on) == (5, f"{NAME}-02")
    assert without_ssh.guests.left() == []


@pytest.mark.long
def test_a_node_that_fails_after_the_first_did_well_is_no_success(without_ssh: Cluster) -> None:
    with_torchrun(without_ssh, f"[ $GPUOPS_GUEST_NAME = {NAME}-00 ] && exit; sleep 4; exit 5")
    cluster_run = launch_torchrun(without_ssh, "train.py")
    assert cluster_run.end is not None and cluster_run.exit_code == 5
    assert cluster_run.end.failed_on in {f"{NAME}-{rank:02}" for rank in range(1, NODES)}
    assert without_ssh.guests.left() == []


def fail_calls(monkeypatch: pytest.MonkeyPatch, call: str, first: int, times: int) -> None:
    """That call to guests fails so many times, from the first of them on."""
    original, call_numbers = getattr(Connection, call), iter(range(1 << 30))

    def answer_or_fail(*words: Any) -> Any:
        if first <= next(call_numbers) < first + times:
            raise StepFailed("VMware Tools does not answer in its guest")
        return original(*words)

    monkeypatch.setattr(Connection, call, answer_or_fail)


@pytest.mark.long
@pytest.mark.parametrize(("call", "times"), [("command_end", 2), ("guest_file_if_there", 8)])
def test_a_guest_that_does_not_answer_for_a_while_ends_no_run(
    without_ssh: Cluster, monkeypatch: pytest.MonkeyPatch, call: str, times: int
) -> None:
    """Files cannot be fetched from before the end on until after it."""
    with_torchrun(without_ssh, "echo begun; sleep 4; echo done")
    messages: list[str] = []
    without_ssh.site.say = messages.append
    fail_calls(monkeypatch, call, 2, times)
    assert launch_torchrun(without_ssh, "train.py").exit_code == 0
    assert without_ssh.lines == ["begun", "done"]
    assert sum("trying again for up to" in message for message in messages) in (1, 2)
    assert without_ssh.guests.left() == []


@pytest.mark.long
def test_a_guest_that_does_not_answer_for_long_ends_the_run(
    without_ssh: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_torchrun(without_ssh, "exec sleep 600")
    monkeypatch.setattr(cluster_runs, "PATIENCE_S", 1.5)
    fail_calls(monkeypatch, "command_end", 2, 1 << 20)
    with pytest.raises(StepFailed, match="does not answer"):
        launch_torchrun(without_ssh, "train.py")
    assert marked_processes() == []


@pytest.mark.long
def test_a_guest_with_output_without_end_is_not_followed_for_ever(
    without_ssh: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_torchrun(without_ssh, "sleep 1")
    part, original = b"x" * (1 << 20), Connection.guest_file_if_there
    monkeypatch.setattr(
        Connection,
        "guest_file_if_there",
        lambda self, vm, name, path: part if "/part." in path else original(self, vm, name, path),
    )
    cluster_run = launch_torchrun(without_ssh, "train.py")
    assert cluster_run.end is not None and cluster_run.end.cut
    assert sum(map(len, without_ssh.heard)) < guests.SHOWN + (2 << 20)


@pytest.mark.long
def test_of_much_output_the_beginning_is_shown_and_that_it_was_cut(
    without_ssh: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "SHOWN", 600_000)
    with_torchrun(without_ssh, "yes | head -c 3000000; sleep 2; yes | head -c 3000000; sleep 2")
    cluster_run = launch_torchrun(without_ssh, "train.py")
    assert cluster_run.end is not None and cluster_run.end.cut
    assert 600_000 <= cluster_run.end.printed_bytes <= 600_000 + guests.PART
    assert cluster_run.end.printed_bytes == sum(map(len, without_ssh.heard))


@pytest.mark.long
def test_the_next_run_ends_and_removes_what_a_killed_one_left(without_ssh: Cluster) -> None:
    with_torchrun(without_ssh, "exec sleep 600")
    plan = plan_launch(RunWish(("train.py",), Launcher.TORCHRUN), running_cluster(NAME, without_ssh.site), "f" * 16)
    assert plan.launch is not None
    killed = replace(plan.launch, command_lines=tuple(f"./{line}" for line in plan.launch.command_lines))
    killed_guests = guests.LaunchGuests(killed, guest_work(without_ssh.site.vcenter))
    ready = killed_guests.prepare()
    for node in range(NODES):
        killed_guests.start(node, ready.known_hosts)
    for rank in range(NODES):
        keys = without_ssh.guests.root(rank) / "root/.ssh"
        keys.mkdir()
        (keys / "authorized_keys").write_text(f"restrict ssh-ed25519 AAAA gpuops-cluster-run:{NAME}:{'f' * 16}\n")
    wait_until(marked_processes)
    assert without_ssh.guests.left()
    with_torchrun(without_ssh, "true")
    assert launch_torchrun(without_ssh, "train.py").exit_code == 0
    assert without_ssh.guests.left() == []
