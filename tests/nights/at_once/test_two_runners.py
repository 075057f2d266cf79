"""Two runners: in every order of their steps at most one acts, and a zombie has at most what it had in flight.

The orders are enumerated, not drawn: each step of lock, lease and effects of the one between each two of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.execute.site import Site
from gpuops.execute.state import lock
from gpuops.model.nights.rotation_policy import LATE
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.lease_rules import CALL_TIMEOUT_S, HEARTBEAT_S, TTL_S
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from tests.nights.at_once.runners import (
    LOCK,
    UNSURE,
    Machine,
    Runner,
    by_markers,
    day,
    evening,
    in_order,
    lease_of,
    lock_vm,
    markers,
    mornings,
    night,
    orders,
    powers,
    revert,
    strays,
)

Act = Callable[[Site], Report]
ALL, SOME, OTHERS = slice(None), slice(0, None, 3), slice(1, None, 3)
"""Of a night's steps, counted from 1: those before which it is stopped."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run that finds the lock taken end at once instead of waiting for it."""
    monkeypatch.setattr(lock, "TRIES", 1)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("second", [night, by_markers], ids=["night", "return"])
def test_in_every_order_of_two_machines_only_the_holder_acts(tmp_path: Path, second: Act) -> None:
    ends: set[tuple[str | None, str | None]] = set()

    def play(choose: Callable[[int], int]) -> None:
        world, machines = evening(), (Machine(tmp_path / "a"), Machine(tmp_path / "b"))
        runners = (
            Runner("a", world, machines[0], night, coarse=True),
            Runner("b", world, machines[1], second, coarse=True),
        )
        in_order(runners, choose)
        assert strays(world, runners) == {"a": [], "b": []}
        assert sum(runner.ended == "Locked" for runner in runners) <= 1, "one of them acts"
        lease = lease_of(world)
        assert lease is not None
        assert lease.nonce == "", "given back"
        ends.add((runners[0].ended, runners[1].ended))
        mornings(world, *machines)

    orders_played = list(orders(play))
    print(f"{len(orders_played)} orders")
    assert len(set(orders_played)) == len(orders_played) > 20
    assert ends >= {("done", "Locked"), ("Locked", "done"), ("done", "done")}


@pytest.mark.long
def test_in_every_order_on_one_machine_the_lock_alone_decides(tmp_path: Path) -> None:
    ends: set[tuple[str | None, str | None]] = set()

    def play(choose: Callable[[int], int]) -> None:
        world, machine = evening(), Machine(tmp_path)
        runners = [Runner(name, world, machine, night, coarse=True) for name in ("a", "b")]
        in_order(runners, choose)
        assert strays(world, runners) == {"a": [], "b": []}
        ends.add((runners[0].ended, runners[1].ended))
        mornings(world, machine)

    orders_played = list(orders(play))
    print(f"{len(orders_played)} orders")
    assert ends == {("done", "Locked"), ("Locked", "done"), ("done", "done")}


def stopped_at(world: World, machine: Machine, steps: int) -> Runner:
    """A night that has gone so many steps, and stands."""
    zombie = Runner("a", world, machine, night)
    for _ in range(steps):
        zombie.step()
    return zombie


def steps_of(tmp_path: Path, act: Act, world: World) -> int:
    runner, number = Runner("alone", world, Machine(tmp_path), act), 0
    while runner.ended is None:
        runner.step()
        number += 1
    return number


@pytest.mark.drawn_cases(3)
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("second", "pause_s", "speed", "stopped"),
    [
        pytest.param(by_markers, TTL_S + 1, 1.0, SOME, id="a return, run out"),
        pytest.param(by_markers, TTL_S + 1, 0.0, OTHERS, id="a return, run out, its clock stands still"),
        *(
            pytest.param(*case, ALL, id=f"{said}, before each step", marks=[pytest.mark.long, pytest.mark.timeout(900)])
            for said, *case in (
                ("a return, run out", by_markers, TTL_S + 1, 1.0),
                ("a return, run out, its clock stands still", by_markers, TTL_S + 1, 0.0),
                ("a return, run out, its clock is slow", by_markers, TTL_S + 1, 0.25),
                ("a return, not yet run out", by_markers, HEARTBEAT_S + CALL_TIMEOUT_S, 1.0),
                ("a night, run out", night, TTL_S + 1, 1.0),
                ("a night, run out, its clock stands still", night, TTL_S + 1, 0.0),
            )
        ),
    ],
)
def test_a_zombie_wakes_at_each_step_of_the_new_holder(
    tmp_path: Path, second: Act, pause_s: float, speed: float, stopped: slice
) -> None:
    """Stopped before a step for longer than its lease, and woken before each step of who came after.

    `speed`: how its machine's clocks went meanwhile; those of a paused machine stand still.
    `stopped`: before which of its steps.
    """
    late: list[str] = []
    played = 0
    for stops in range(1, steps_of(tmp_path / "n", night, evening()))[stopped]:
        wakes = 0
        while True:
            world, machines = evening(), (Machine(tmp_path / f"{played}a"), Machine(tmp_path / f"{played}b"))
            zombie = stopped_at(world, machines[0], stops)
            where = f"stopped at {zombie.at!r}, woken after {wakes} steps"
            zombie.set_speed(speed)
            with world.lock:
                world.clock.advance(pause_s)
            second_runner = Runner("b", world, machines[1], second, coarse=True)
            for _ in range(wakes):
                if second_runner.ended is None:
                    second_runner.step()
            all_of_it = second_runner.ended is not None
            zombie.set_speed(speed or 1.0)
            zombie.finish()
            second_runner.finish()
            strays_by_runner = strays(world, (zombie, second_runner))
            assert len(strays_by_runner["a"]) <= 1, where
            assert strays_by_runner["b"] == [], where
            late += [f"{entry.method} {entry.name}" for entry in strays_by_runner["a"]]
            mornings(world, *machines)
            played, wakes = played + 1, wakes + 1
            if all_of_it:
                break
    print(f"{played} orders, {len(late)} late effects: {sorted(set(late))}")
    assert played > 20
    assert bool(late) == (pause_s > TTL_S), "the zombie's one effect, and only where its lease had run out"


@pytest.mark.parametrize(
    ("pause_s", "stopped"),
    [(0.0, SOME), (TTL_S + 1, OTHERS), *(pytest.param(each, ALL, marks=pytest.mark.long) for each in (0.0, TTL_S + 1))],
    ids=["at once", "run out", "at once, before each step", "run out, before each step"],
)
def test_a_lock_vm_reverted_to_a_snapshot_lets_no_two_nights_act(
    tmp_path: Path, pause_s: float, stopped: slice
) -> None:
    """Reverted before these steps of a night, to what it carried before; a night of another machine follows."""
    ends = set[str | None]()
    for stops in range(1, steps_of(tmp_path / "n", night, evening()))[stopped]:
        world, machines = evening(), [Machine(tmp_path / f"{stops}{name}") for name in "ab"]
        for earlier in (night, day):
            before = Runner("before", world, machines[0], earlier)
            before.finish()
            assert before.ended == "done"
        with world.lock:
            world.clock.advance(24 * 3600)
        snapshot = lock_vm(world).state.extra_config
        first_runner = stopped_at(world, machines[0], stops)
        revert(world, snapshot)
        with world.lock:
            world.clock.advance(pause_s)
        second_runner = Runner("b", world, machines[1], night)
        second_runner.finish()
        first_runner.finish()
        strays_by_runner = strays(world, (first_runner, second_runner))
        assert len(strays_by_runner["a"]) <= 1, f"stopped at {first_runner.at!r}"
        assert strays_by_runner["b"] == [], f"stopped at {first_runner.at!r}"
        ends.add(second_runner.ended)
        mornings(world, *machines)
    assert ends >= {"LeaseReverted"}


@pytest.mark.long
def test_the_last_suspend_of_a_machine_that_is_lost_is_brought_back_by_the_other_alone(tmp_path: Path) -> None:
    """The night is stopped before each of its steps; the return on the other machine sees only a marker; then that one
    step arrives after all. Its journal is lost, and no one else acts.
    """
    late: list[str] = []
    for stops in range(1, steps_of(tmp_path / "n", night, evening())):
        world, lost, second_machine = evening(), Machine(tmp_path / f"{stops}a"), Machine(tmp_path / f"{stops}b")
        zombie = stopped_at(world, lost, stops)
        with world.lock:
            world.clock.advance(TTL_S + 1)
        first = Runner("b", world, second_machine, by_markers)
        first.finish()
        zombie.finish()
        late += [change.method for change in world.ledger if change.operation_id in zombie.op_ids][-1:]
        for _ in range(2):
            with world.lock:
                world.clock.advance(LATE.total_seconds())
            third_runner = Runner("c", world, second_machine, by_markers)
            third_runner.finish()
        assert third_runner.ended == "done", f"stopped at {zombie.at!r}"
        assert powers(world) == {"desktop-001": Power.ON, "desktop-002": Power.ON, "ml-01": Power.OFF}
        assert markers(world) == set()
    assert "SuspendVM_Task" in late


@pytest.mark.long
def test_a_live_run_keeps_its_lease_however_slow(tmp_path: Path) -> None:
    """As long as it looks once in a heartbeat and a call: another one that tries at each step is refused."""
    world, machines = evening(), (Machine(tmp_path / "a"), Machine(tmp_path / "b"))
    slow, refused = Runner("a", world, machines[0], night), 0
    while slow.ended is None:
        slow.step()
        lease = lease_of(world)
        if lease is None or not lease.nonce:
            continue
        with world.lock:
            world.clock.advance(HEARTBEAT_S - CALL_TIMEOUT_S)
        second_runner = Runner("b", world, machines[1], by_markers)
        second_runner.finish()
        refused += second_runner.ended == "Locked"
    assert slow.ended == UNSURE, (
        "a suspend does not go by what was read so long ago, and the lease is its own to the end"
    )
    assert refused > 5
    assert LOCK not in powers(world)
    mornings(world, *machines)
