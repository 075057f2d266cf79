"""Programs and all-reduces over a cluster whose call is killed anywhere, before or after each request that it sends and
each record of its journal.

A call that is killed here sends and records nothing more, as after `kill -9`; what runs in the guests goes on, and the
journal has its intent. Then another run, of this machine or, once its lease has run out, of another one, or the removal
of the cluster, leaves nothing of it: files, keys, processes, overrides of DRS, open runs. Real processes are killed in
`tests/cli/workloads/test_cluster_run.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pyVmomi import vim

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.errors import Locked
from gpuops.execute.journal import Journal
from gpuops.execute.journal.record import Kind
from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.clusters import cluster_guests as guests
from gpuops.extras.clusters import cluster_runs
from gpuops.extras.clusters.cluster_members import marked_vms
from gpuops.extras.clusters.cluster_runs import cluster_bench, cluster_run, running_cluster
from gpuops.extras.clusters.existing import delete_cluster
from gpuops.extras.clusters.launch import plan_launch
from gpuops.extras.clusters.run import PROGRAM, open_runs, require_unused, used_alone, wait_for_tasks
from gpuops.extras.clusters.run_request import AllReduceProgram, BenchWish, Launcher, RunWish, Transport
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.model.vcenter.vm import VmDrs
from gpuops.plan.core.steps import SetVmDrs
from gpuops.plan.rotation.lease_rules import KEY, TTL_S, parse_lease
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests import guest_commands
from gpuops.vsphere.transport.stub import Stub
from tests.cluster_guests import NAME, NODES, PASSWORD, USER, ClusterGuests, cluster_guests, marked_processes, needs_mpi
from tests.harness.killing import Countdown, Killed
from tests.wire.conftest import target_of

pytestmark = needs_mpi
SEEDS: Final = 100
MOST: Final = 220
"""Requests and records of a run of a few seconds, and a few more."""
RECORDS: Final = ("the run begins", "its intent", "its outcome", "the run ends")
"""Those that a run writes to the journal, in their order."""


@dataclass
class Machines:
    """Two machines that reach the cluster, each with a state directory of its own."""

    guests: ClusterGuests
    folder: Path
    requests: Countdown
    heard: list[bytes] = field(default_factory=list)

    def alive(self, call: Callable[[Site], Any], machine: int = 0) -> Any:
        """What a call of that machine comes to; None = it was killed. Raises what it raises."""
        target = replace(target_of(self.guests.server), guest=GuestLogin(USER, Secret(PASSWORD)))
        connection = Connection(target)
        site = Site(connection, self.folder / f"state-{machine}", wall_clock)
        try:
            return call(site)
        except Killed:
            return None
        finally:
            self.requests.left = None
            connection.close()

    def run(self, site: Site, *command: str, **options: Any) -> int:
        wish = RunWish(command, ssh_port=self.guests.ssh_port, **options)
        return cluster_run(NAME, wish, site, self.heard.append, apply=True).exit_code

    def torchrun(self, site: Site, ranks: int) -> int:
        """By a program in each guest that stands for it, which is on no path."""
        cluster = running_cluster(NAME, site)
        plan = plan_launch(RunWish(("train.py",), Launcher.TORCHRUN, ranks=ranks), cluster, f"{id(site):016x}")
        assert plan.launch is not None
        launch = replace(plan.launch, command_lines=tuple(f"./{line}" for line in plan.launch.command_lines))
        with used_alone(site, cluster, "cluster run") as lease:
            return cluster_runs.run(launch, site, lease, self.heard.append).exit_code

    def bench(self, site: Site, nodes: tuple[int, ...]) -> int:
        program = AllReduceProgram.MPI4PY
        wish = BenchWish(nodes, (4096,), (Transport.TCP,), program, ssh_port=self.guests.ssh_port)
        return 0 if cluster_bench(NAME, wish, site).complete else 4

    def open_programs(self, machine: int = 0) -> list[int]:
        """How many intents are open in each open run of a program, by the journal of that machine."""

        def read(site: Site) -> list[int]:
            with site.journal_to_read(site.vcenter.uuid) as journal:
                return [len(journal.open_programs(run)) for run in open_runs(journal, NAME, PROGRAM)] if journal else []

        programs: list[int] = self.alive(read, machine)
        return programs

    def lease_runs_out(self) -> None:
        self.guests.server.world.clock.advance(TTL_S + 1)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Countdown:
    """Those of gpuops, and of no other client; guests are asked more often than of real ones."""
    requests, sent, append = Countdown(), Stub.InvokeMethod, Journal._append
    monkeypatch.setattr(Stub, "InvokeMethod", lambda *words: requests.around(lambda: sent(*words)))
    monkeypatch.setattr(Journal, "_append", lambda *words: requests.around(lambda: append(*words)))
    monkeypatch.setattr(cluster_runs, "POLL_S", 0.2)
    monkeypatch.setattr(guest_commands, "POLLS_S", (0.2,))
    return requests


@pytest.fixture(scope="module")
def guests_with_torchrun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterGuests]:
    with cluster_guests(tmp_path_factory.mktemp("guests")) as guests:
        for rank in range(NODES):
            tool = guests.root(rank) / "root/torchrun"
            tool.write_text("#!/bin/sh\nsleep 2\n")
            tool.chmod(0o700)
        yield guests


@pytest.fixture
def machines(guests_with_torchrun: ClusterGuests, requests: Countdown, tmp_path: Path) -> Iterator[Machines]:
    """Each test leaves nothing in the guests, and no lease."""
    yield Machines(guests_with_torchrun, tmp_path, requests)
    assert guests_with_torchrun.left() == []
    guests_with_torchrun.server.world.clock.advance(TTL_S + 1)


def drawn(dice: Random, machines: Machines) -> Callable[[Site], int]:
    """A call that takes a few seconds."""
    ranks, nodes = dice.randint(1, NODES), tuple(sorted(dice.sample((1, 2, 3, 4), dice.randint(1, 2))))
    return dice.choice(
        (
            lambda site: machines.run(site, "sleep", "2", ranks=ranks),
            lambda site: machines.run(site, "sh", "-c", "trap '' TERM; sleep 2", ranks=ranks),
            lambda site: machines.torchrun(site, ranks),
            lambda site: machines.bench(site, nodes),
        )
    )


def play(seed: int, machines: Machines) -> None:
    """One schedule: calls of one machine or the other that are killed, then one that is not."""
    dice, last = Random(seed), 0
    for _ in range(dice.randint(1, 3)):
        machine, call = dice.randint(0, 1), drawn(dice, machines)
        if machine != last:
            refused_or_free(machines, machine)
        machines.requests.left, machines.requests.after = dice.randint(1, MOST), dice.random() < 0.5
        machines.alive(call, machine)
        if machines.guests.left():
            assert 1 in machines.open_programs(0) + machines.open_programs(1), f"seed {seed}: no intent"
        last = machine
    machine = dice.randint(0, 1)
    if machine != last:
        refused_or_free(machines, machine)
    assert machines.alive(drawn(dice, machines), machine) == 0, f"seed {seed}: {machines.heard}"
    assert machines.guests.left() == [], f"seed {seed}"
    assert machines.open_programs(machine) == [], f"seed {seed}"


def refused_or_free(machines: Machines, machine: int) -> None:
    """What the other machine was killed at keeps this one away until its lease runs out; the simulated vCenter's clock
    runs ahead of real time with each request, so that one that has less than a minute left may be over any moment."""
    if machines.alive(lease_left_s, machine) > 60:
        with pytest.raises(Locked, match=f"cluster {NAME} is in use: pid .* holds the lease until"):
            machines.alive(lambda site: machines.run(site, "true"), machine)
    machines.lease_runs_out()


def lease_left_s(site: Site) -> float:
    """Of the lease on the cluster that this machine did not leave there itself, by vCenter's clock.

    What the killed call has sent is done first: it may give the lease back.
    """
    wait_for_tasks(site, NAME, site.vcenter.inventory())
    inventory = site.vcenter.inventory()
    with suppress(Locked):
        require_unused(NAME, inventory, site)
        return 0.0
    text = (marked_vms(inventory, NAME)[0].vm.extra_config or {})[KEY]
    lease = parse_lease(text)
    assert lease is not None
    return (lease.expires - inventory.taken_at).total_seconds()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_runs_that_are_killed_leave_nothing_that_the_next_does_not_end(seed: int, machines: Machines) -> None:
    play(seed, machines)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize(
    ("record", "open_before", "open_after"),
    [("the run begins", [], [0]), ("its intent", [0], [1]), ("its outcome", [1], [0]), ("the run ends", [0], [])],
)
def test_a_run_that_is_killed_at_a_record_is_settled_by_the_next(
    *,
    record: str,
    open_before: list[int],
    open_after: list[int],
    after: bool,
    machines: Machines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number, append, records = RECORDS.index(record), Journal._append, Counter[str]()

    def killed(journal: Journal, drafted: Any) -> Any:
        records["appended"] += 1
        if records["appended"] != number + 1:
            return append(journal, drafted)
        if after:
            append(journal, drafted)
        machines.requests.left = 0
        raise Killed

    monkeypatch.setattr(Journal, "_append", killed)
    machines.alive(lambda site: machines.run(site, "true"))
    assert machines.open_programs() == (open_after if after else open_before)
    assert machines.guests.left() == []
    machines.lease_runs_out()
    assert machines.alive(lambda site: machines.run(site, "true")) == 0
    assert machines.open_programs() == []


@pytest.mark.long
def test_a_run_that_is_interrupted_cleans_up_and_settles(machines: Machines) -> None:
    outcomes: list[str] = []

    def interrupt(_: float) -> None:
        if marked_processes():
            raise KeyboardInterrupt
        threading.Event().wait(0.1)

    def interrupted(site: Site) -> None:
        site.pause = interrupt
        with pytest.raises(KeyboardInterrupt):
            machines.run(site, "sleep", "60")
        with site.journal_to_read(site.vcenter.uuid) as journal:
            assert journal is not None
            outcomes.extend(each.body["reason"] for each in journal.records() if each.kind is Kind.SETTLED)

    machines.alive(interrupted)
    assert outcomes == ["interrupted"]
    assert machines.open_programs() == []


@pytest.mark.long
def test_a_run_has_no_more_requests_than_it_is_killed_at(machines: Machines) -> None:
    assert machines.alive(lambda site: machines.run(site, "sleep", "2")) == 0
    assert 120 < machines.requests.events <= MOST + 60, "more on a slow machine, which asks more often for its end"


@pytest.mark.long
def test_while_one_machine_runs_another_is_refused_and_changes_nothing(machines: Machines) -> None:
    refused: list[str] = []

    def elsewhere(site: Site) -> None:
        standing_before = running_cluster(NAME, site)
        for call in (
            lambda site: machines.run(site, "true"),
            lambda site: machines.bench(site, (1,)),
            lambda site: delete_cluster(NAME, site, apply=True),
        ):
            with pytest.raises(Locked) as raised:
                call(site)
            refused.append(raised.value.message)
        assert running_cluster(NAME, site) == standing_before

    def pause(seconds: float) -> None:
        if not refused and marked_processes():
            machines.alive(elsewhere, 1)
        threading.Event().wait(seconds)

    def first(site: Site) -> int:
        site.pause = pause
        return machines.run(site, "sleep", "2")

    assert machines.alive(first) == 0
    assert len(refused) == 3
    assert all(message.startswith(f"cluster {NAME} is in use: pid ") for message in refused), refused
    assert machines.alive(lambda site: machines.run(site, "true"), 1) == 0, "the first has given it back"


@pytest.mark.long
def test_a_run_whose_cluster_was_taken_over_ends_what_is_its_own_and_no_more(machines: Machines) -> None:
    takeovers: list[int] = []

    def pause(seconds: float) -> None:
        if not takeovers and marked_processes():  # as a machine that stood still for more than three minutes
            machines.lease_runs_out()
            takeovers.append(machines.alive(lambda site: machines.run(site, "true"), 1))
        threading.Event().wait(seconds)

    def first(site: Site) -> int:
        site.pause, before = pause, site.passed_s
        site.passed_s = lambda: before() + (TTL_S + 1) * len(takeovers)
        return machines.run(site, "sleep", "60")

    with pytest.raises(Locked, match="the lease on its VM of rank 0 is not ours any more"):
        machines.alive(first)
    assert takeovers == [0]


@pytest.mark.long
def test_a_script_that_goes_on_after_its_run_was_killed_writes_nothing_once_the_next_runs(machines: Machines) -> None:
    def killed_while_it_prepares(site: Site) -> None:
        plan = plan_launch(RunWish(("true",)), running_cluster(NAME, site), "f" * 16)
        assert plan.launch is not None
        late = guests.prepare_command(plan.launch, first=False).replace("mkdir -p", "sleep 4; mkdir -p", 1)
        for member in plan.launch.members:
            guest_work(site.vcenter).start_command(member.vm, member.name, late, "late", guests.PREFIX)

    machines.alive(killed_while_it_prepares)
    assert machines.alive(lambda site: machines.torchrun(site, NODES)) == 0
    threading.Event().wait(4)
    assert machines.guests.left() == []


def deletable(guests: ClusterGuests, site: Site) -> None:
    """The VMs are as `cluster create` makes them: with notes and an override of DRS."""
    inventory = site.vcenter.inventory()
    for vm in marked_vms(inventory, NAME):
        site.vcenter.vm(vm.vm.ref).ReconfigVM_Task(vim.vm.ConfigSpec(annotation=vm.marker.notes))  # type: ignore[attr-defined]
        task = site.vcenter.submit(SetVmDrs(vm.vm.ref, VmDrs.MANUAL), inventory, f"drs-{vm.vm.ref}")
        assert task is not None and [end.error for end in site.vcenter.wait([task], 60.0)] == [None]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("request_", range(5, MOST, 18))
def test_a_cluster_whose_run_was_killed_is_removed_with_all_that_it_left(
    request_: int, requests: Countdown, tmp_path: Path
) -> None:
    with cluster_guests(tmp_path) as guests:
        machines = Machines(guests, tmp_path, requests)
        machines.alive(lambda site: deletable(guests, site))
        requests.left, requests.after = request_, True
        machines.alive(lambda site: machines.run(site, "sleep", "30"))
        removed = machines.alive(lambda site: delete_cluster(NAME, site, apply=True))
        assert (removed.exit_code, len(removed.vms)) == (0, NODES)
        assert marked_processes() == []
        assert machines.open_programs() == []
        inventory = machines.alive(lambda site: site.vcenter.inventory())
        assert marked_vms(inventory, NAME) == ()
        assert [cluster.drs_overrides for cluster in inventory.clusters.values()] == [()]
