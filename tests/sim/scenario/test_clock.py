"""Time: virtual time moves when a client waits, real time by itself, and nothing runs before it is due."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

import pytest
from pytest_mock import MockerFixture

from gpuops.clock import wall_clock
from gpuops.sim.core.sim_clock import VIRTUAL_START, Clock, ClockMode
from gpuops.sim.scenario.build import new_world
from tests.sim.small_world import small_world


def test_alarms_run_in_order_at_their_own_time() -> None:
    clock = Clock()
    ran: list[tuple[str, float]] = []

    def note(name: str) -> None:
        ran.append((name, (clock.now() - VIRTUAL_START).total_seconds()))

    clock.schedule(5, lambda: note("later"))
    clock.schedule(2, lambda: note("sooner"))
    clock.schedule(2, lambda: note("sooner too"))
    clock.advance(10)
    assert ran == [("sooner", 2), ("sooner too", 2), ("later", 5)]
    assert clock.now() == VIRTUAL_START + timedelta(seconds=10)


def test_an_action_may_schedule_what_is_due_before_the_end() -> None:
    clock = Clock()
    ran: list[int] = []

    def run_and_schedule() -> None:
        ran.append(1)
        if len(ran) < 3:
            clock.schedule(2, run_and_schedule)

    clock.schedule(2, run_and_schedule)
    clock.advance(10)
    assert len(ran) == 3


def test_a_cancelled_alarm_does_not_run() -> None:
    clock = Clock()
    ran: list[int] = []
    alarm = clock.schedule(1, lambda: ran.append(1))
    alarm.cancel()
    assert clock.next_due() is None
    clock.advance(5)
    assert ran == []


def test_nobody_waits_for_a_background_alarm() -> None:
    clock = Clock()
    clock.schedule(1, lambda: None, background=True)
    assert clock.next_due() is None
    assert clock.next_due(background=True) == VIRTUAL_START + timedelta(seconds=1)


def test_requests_take_time() -> None:
    clock = Clock()
    for _ in range(200):
        clock.take_request()
    assert clock.now() == VIRTUAL_START + timedelta(seconds=1)


def test_a_failing_action_does_not_stop_time() -> None:
    clock = Clock()
    clock.schedule(1, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        clock.advance(2)
    clock.advance(2)
    assert clock.now() >= VIRTUAL_START + timedelta(seconds=2)


def test_real_time_is_real_and_can_be_moved() -> None:
    clock = Clock(ClockMode.REAL)
    ran: list[int] = []
    clock.schedule(3600, lambda: ran.append(1))
    before = wall_clock()
    assert timedelta() <= clock.now() - before < timedelta(seconds=60)
    clock.run_due()
    assert ran == []
    clock.advance(3601)
    assert ran == [1]
    assert clock.now() - before >= timedelta(seconds=3601)


def test_waiting_jumps_to_what_is_scheduled() -> None:
    world = small_world()
    ran: list[bool] = []
    world.clock.schedule(300, lambda: ran.append(True))
    with world.lock:
        assert world.wait(lambda: ran or None, 1000) == [True]
    assert world.clock.now() - VIRTUAL_START < timedelta(seconds=302)


def test_waiting_ends_when_the_time_is_up() -> None:
    world = small_world()
    world.clock.schedule(300, lambda: None)
    with world.lock:
        assert world.wait(lambda: None, 20) is None
    assert world.clock.now() == VIRTUAL_START + timedelta(seconds=20)


def test_what_happens_together_is_told_together() -> None:
    world = small_world()
    ran: list[int] = []
    for number in range(10):
        world.clock.schedule(5 + number / 100, lambda number=number: ran.append(number))  # type: ignore[misc]
    with world.lock:
        result_of_wait = world.wait(lambda: list(ran) or None, 60)
    assert result_of_wait == list(range(10))


@pytest.mark.parametrize("mode", list(ClockMode))
def test_a_wait_hears_of_another_clients_change(mode: ClockMode) -> None:
    world = small_world(clock=mode)
    started = threading.Event()
    heard: list[str] = []

    def waiting() -> None:
        with world.lock:
            started.set()
            new_name = world.wait(lambda: world.get("vm-1").name if world.get("vm-1").name == "new" else None, None)
            heard.append(new_name or "")

    thread = threading.Thread(target=waiting)
    thread.start()
    started.wait(5)
    with world.lock:
        world.get("vm-1").name = "new"
        world.get("vm-1").touch("name")
    thread.join(10)
    assert heard == ["new"]


def test_real_tasks_end_in_their_own_time() -> None:
    world = small_world(clock=ClockMode.REAL)
    ended_at: list[datetime] = []
    begun = world.clock.now()
    world.clock.schedule(0.02, lambda: ended_at.append(world.clock.now()))
    with world.lock:
        world.wait(lambda: ended_at or None, 10)
    assert ended_at[0] - begun >= timedelta(seconds=0.02)


def test_the_same_seed_gives_the_same_ids() -> None:
    def ids(seed: int) -> list[str]:
        world = new_world(seed=seed)
        return [world.sessions.unique_id() for _ in range(3)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


@pytest.mark.parametrize(("mode", "waits"), [(ClockMode.STEPPED, 0), (ClockMode.VIRTUAL, 1)])
def test_stepped_time_waits_for_no_other_client(mode: ClockMode, waits: int, mocker: MockerFixture) -> None:
    world = new_world(clock=mode)
    for_others = mocker.patch.object(world.changed, "wait", return_value=False)
    begun = world.clock.now()
    with world.lock:
        assert world.wait(lambda: None, 60.0) is None
    assert world.clock.now() - begun >= timedelta(seconds=60)
    assert for_others.call_count == waits
