"""Clusters whose calls are cut off anywhere: before and after each change, look, wait and line of the journal.

A call that is cut off here ends as by `kill -9`: nothing of gpuops is asked any more, what was sent goes on in vCenter.
`tests/kills/test_cluster_kills.py` has real processes that are killed. `make clusters` plays all of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.extras.clusters.cluster_members import marked_vms
from gpuops.extras.clusters.cluster_runs import running_cluster
from gpuops.extras.clusters.creating import create_cluster
from gpuops.extras.clusters.existing import delete_cluster
from gpuops.extras.clusters.run import open_runs
from gpuops.model.vcenter.vm import PowerState, VmDrs
from gpuops.model.workloads.cluster import (
    MARKER_KEY,
    Arrangement,
    ClusterWish,
    LatencyLevel,
    RdmaKind,
    parse_cluster_marker,
)
from gpuops.sim.server import SimServer, start
from gpuops.vsphere.connection import Connection
from tests.harness.killing import Countdown, Killed
from tests.wire.conftest import target_of

SCHEDULES: Final = 500
CALLS: Final = 4
"""Highest number of calls cut off in one schedule."""
NAME: Final = "train"
CARDS: Final[tuple[tuple[dict[str, Any], int], ...]] = (
    ({}, 6),
    ({"rdma": RdmaKind.PVRDMA, "port_group": "rdma-vm"}, 6),
    ({"rdma": RdmaKind.SRIOV, "port_group": "sriov-vm"}, 6),
    ({"rdma": RdmaKind.DIRECTPATH, "device": "15b3:101d"}, 4),
)
"""How the network card is asked for, and the most VMs with one GPU."""


class CountedConnection(Connection):
    """A connection that may end its call at each change, look and wait."""

    countdown = Countdown()

    def change(self, call: Any, *arguments: Any, subject: str, op_id: str) -> Any:
        return self.countdown.around(lambda: super(CountedConnection, self).change(
            call, *arguments, subject=subject, op_id=op_id
        ))  # fmt: skip

    def wait(self, tasks: Any, timeout_s: float) -> Iterator[Any]:
        yield from self.countdown.around(lambda: list(super(CountedConnection, self).wait(tasks, timeout_s)))

    def inventory(self) -> Any:
        return self.countdown.around(lambda: super(CountedConnection, self).inventory())

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Any:
        return self.countdown.around(
            lambda: super(CountedConnection, self).wait_for_guest(vm, timeout_s, address=address)
        )


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with start("training", clock="virtual") as served:
        yield served
        assert served.world.bugs == []


@pytest.fixture
def countdown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Countdown]:
    """That of the connection, which counts what the journal appends too."""
    countdown = Countdown()
    monkeypatch.setattr(CountedConnection, "countdown", countdown)
    with countdown.of_the_journal():
        yield countdown


def names(server: SimServer) -> list[str]:
    with server.world.lock:
        return sorted(vm.name for vm in server.world.by_type("VirtualMachine"))


def without_owner(server: SimServer, before: list[str]) -> list[str]:
    """Return the VMs that the scenario does not declare and that carry no cluster marker."""
    with server.world.lock:
        vms = {vm.name: dict(vm.state.extra_config) for vm in server.world.by_type("VirtualMachine")}
    return [
        name
        for name, extra in vms.items()
        if name not in before and parse_cluster_marker(extra.get(MARKER_KEY, "")) is None
    ]


def drawn(dice: Random) -> ClusterWish:
    """A cluster that the hosts hold, with one of the kinds of RDMA card."""
    gpus = dice.choice((1, 1, 2))
    card, most = dice.choice(CARDS)
    return ClusterWish(
        NAME,
        "trainer",
        nodes=dice.randint(1, most // gpus),
        gpus=gpus,
        profile="a100d-80c",
        **card,
        placement=dice.choice(tuple(Arrangement)),
        memory_mib=dice.choice((None, 65536)),
        huge_pages=dice.random() < 0.5,
        latency=dice.choice(tuple(LatencyLevel)),
    )


def one_call(server: SimServer, state: Path, wish: ClusterWish, command: str, *, keep: bool = False) -> int | None:
    """The exit code of one call; None = it was cut off."""
    with CountedConnection(target_of(server)) as connection:
        site = Site(connection, state, wall_clock)
        try:
            if command == "create":
                report = create_cluster(wish, site, apply=True, keep=keep, consent=lambda plan: None)
                print(report.failed, *(rejection.line for rejection in report.plan.rejections), sep="; ")
                return report.exit_code
            return delete_cluster(wish.name, site, apply=True).exit_code
        except Killed:
            return None


def check_whole(server: SimServer, state: Path, wish: ClusterWish) -> None:
    """All of it runs as it was wanted, and the same again finds nothing to do."""
    with Connection(target_of(server)) as connection:
        site = Site(connection, state, wall_clock)
        second_run = create_cluster(wish, site, apply=True, keep=False, consent=lambda plan: pytest.fail("asked"))
        assert (second_run.exit_code, second_run.changed) == (0, False)
        inventory = connection.inventory()
        members = marked_vms(inventory, wish.name)
        assert [marked_vm.marker.rank for marked_vm in members] == list(range(wish.nodes))
        assert len({marked_vm.marker.id for marked_vm in members}) == 1
        for marked_vm in members:
            assert marked_vm.vm.power is PowerState.ON
            assert len(marked_vm.vm.vgpus) == wish.gpus
            assert marked_vm.vm.memory_reservation_mib == marked_vm.vm.memory_mib
            assert inventory.drs_of(marked_vm.vm) is VmDrs.MANUAL
        assert len(running_cluster(wish.name, site).members) == wish.nodes


def check_gone(server: SimServer, state: Path, before: list[str]) -> None:
    """Nothing of it is left: no VM, no override, no open run."""
    assert names(server) == before
    with Connection(target_of(server)) as connection:
        inventory = connection.inventory()
        assert [cluster.drs_overrides for cluster in inventory.clusters.values()] == [()]
        with Site(connection, state, wall_clock).journal_to_read(inventory.vcenter) as journal:
            assert open_runs(journal, NAME) == ()


def play(seed: int, server: SimServer, countdown: Countdown, folder: Path) -> None:
    """One schedule: calls that are cut off, then one that is not, then the removal of it, cut off and not."""
    dice, before, state = Random(seed), names(server), folder / "state"
    wish = drawn(dice)
    for _ in range(dice.randint(1, CALLS)):
        countdown.left, countdown.after = dice.randint(1, 40), dice.random() < 0.5
        one_call(server, state, wish, dice.choices(("create", "delete"), (4, 1))[0], keep=dice.random() < 0.5)
        assert without_owner(server, before) == [], f"seed {seed}"
    countdown.left = None
    if dice.random() < 0.7:
        assert one_call(server, state, wish, "create") == 0, f"seed {seed}"
        check_whole(server, state, wish)
    for _ in range(dice.randint(0, 2)):
        countdown.left, countdown.after = dice.randint(1, 15), dice.random() < 0.5
        one_call(server, state, wish, "delete")
        assert without_owner(server, before) == [], f"seed {seed}"
    countdown.left = None
    assert one_call(server, state, wish, "delete") == 0, f"seed {seed}"
    check_gone(server, state, before)


@pytest.mark.long
@pytest.mark.drawn_cases(125)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_calls_that_are_cut_off_leave_nothing_that_the_next_call_does_not_end(
    seed: int, server: SimServer, countdown: Countdown, tmp_path: Path
) -> None:
    play(seed, server, countdown, tmp_path)


STEPS: Final = 60
"""More than the call has events: those beyond its end find it whole."""


@pytest.mark.quick_cases(1)
@pytest.mark.drawn_cases(10)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_call_that_is_cut_off_at_each_step_in_turn_is_gone_on_with_by_the_same(
    server: SimServer, countdown: Countdown, tmp_path: Path, step: int, *, after: bool
) -> None:
    wish, before = (
        ClusterWish(NAME, "trainer", nodes=2, gpus=1, profile="a100d-80c", rdma=RdmaKind.PVRDMA, port_group="rdma-vm"),
        names(server),
    )
    countdown.left, countdown.after = step, after
    one_call(server, tmp_path, wish, "create")
    assert without_owner(server, before) == []
    countdown.left, countdown.events = None, 0
    assert one_call(server, tmp_path, wish, "create") == 0
    check_whole(server, tmp_path, wish)
    assert one_call(server, tmp_path, wish, "delete") == 0
    check_gone(server, tmp_path, before)


@pytest.mark.long
def test_a_call_has_no_more_events_than_are_cut_off_at(server: SimServer, countdown: Countdown, tmp_path: Path) -> None:
    wish = ClusterWish(
        NAME, "trainer", nodes=2, gpus=1, profile="a100d-80c", rdma=RdmaKind.PVRDMA, port_group="rdma-vm"
    )
    assert one_call(server, tmp_path, wish, "create") == 0
    assert 20 < countdown.events <= STEPS
    assert one_call(server, tmp_path, wish, "delete") == 0
