"""Killed at every point of a night, and resumed: no desktop is lost, and nothing is done twice.

Whenever a night is cut off, a return at once brings everybody back: by the journal, or on a new machine by what
vCenter's markers say (I12 at every instant of taking, I10).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import count, islice, repeat
from typing import Any, Final

import pytest

from gpuops.execute.rotation.rotation import restore
from gpuops.execute.runs import RunKind
from gpuops.execute.site import agreed
from gpuops.model.nights.rotation_policy import LATE
from gpuops.plan.core.plan import Report
from gpuops.sim.state.vm_state import Power
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import violations
from tests.nights.judging.doings import START, effects, is_desktop
from tests.nights.playing.night import Nightly, play
from tests.nights.playing.place import NightStore
from tests.nights.playing.played import Played
from tests.nights.world.worlds import CLOSES, EVENING, site_of
from tests.sample import every_nth

ROTATION_RUNS: Final = (RunKind.NIGHT, RunKind.DAY)


RESUME: Final = "rotate resume"


WORLDS: Final = 20


PAIRED: Final = (162, 258)
"""Nights of few points, so that all pairs of two of them are a matter of a minute."""


def points_of(seed: int) -> dict[str, int]:
    """How many points each half of the night of a seed has in which nothing goes wrong: before and after each append
    to the journal and each effect."""
    night = Nightly(seed, [])
    night.play()
    return night.points


def killed_at(seed: int, half: str, *points: int) -> tuple[int, list[str]]:
    """Kill this half of the night at the first of these points, and each run that continues it at the next ones. Return
    the number of killed processes and the broken invariants.
    """
    first, *then = points
    goes_on = RunKind.DAY if half == RunKind.DAY else RESUME  # a morning that was killed is cron's
    events = [Event("K1", target=half, point=first), *(Event("K1", target=goes_on, point=point) for point in then)]
    night = play(seed, events)
    killed = [name for name, ended, _ in night.calls if ended == "killed"]
    assert killed[:1] == [half], f"seed {seed}: no process was killed in {half} at {first}"
    return len(killed), [f"seed {seed}, {half} killed at {points}: {violation}" for violation in violations(night)]


def killed_everywhere(seed: int, half: str) -> tuple[int, list[str]]:
    """How many points this half of the night of a seed has, each of which was the end of a process; what that broke."""
    most = points_of(seed)[half]
    return most, [violation for point in range(1, most + 1) for violation in killed_at(seed, half, point)[1]]


def test_a_run_is_killed_at_each_point_of_a_night() -> None:
    for half in ROTATION_RUNS:
        points, broken = killed_everywhere(364, half)
        assert broken == []
        assert points >= 20, "there is something to be killed in"


@pytest.mark.long
def test_a_run_and_those_that_resume_it_are_killed() -> None:
    for point in range(9, 46, 9):
        assert killed_at(132, RunKind.NIGHT, point, 7, 4) == (3, [])


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("half", ROTATION_RUNS)
def test_nights_are_killed_everywhere(half: str) -> None:
    """A tenth of twenty nights a run."""
    nights = islice(
        (
            seed
            for seed in count(100, 2)
            if all(points_of(seed).get(points_of_half) for points_of_half in ROTATION_RUNS)
        ),
        WORLDS,
    )
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        results_of_kills = list(pool.map(killed_everywhere, every_nth(list(nights), 10), repeat(half)))
    points = sum(points_of_half for points_of_half, _ in results_of_kills)
    print(f"{points} points of {len(results_of_kills)} times {half}")
    assert [violation for _, broken in results_of_kills for violation in broken] == []
    assert len(results_of_kills) == WORLDS // 10
    assert points > 40


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", PAIRED)
def test_two_nights_are_killed_at_all_pairs_of_points(seed: int) -> None:
    """After a kill at every fourth point, the run that continues is killed too, at each of its points."""
    pairs = 0
    for half, most in points_of(seed).items():
        for point in every_nth(range(1, most + 1), 4):
            for second in count(1):
                killed, broken = killed_at(seed, half, point, second)
                assert broken == []
                if killed < 2:
                    break
                pairs += 1
    print(f"{pairs} pairs of the night of seed {seed}")
    assert pairs > 100


HURRY: Final = timedelta(hours=1)
"""In these small worlds a return is over long before its deadline; what waits for a whole night has not fitted back."""


class CutShort(Nightly):
    """An evening that is killed at a point, and the return that is begun at once."""

    def __init__(self, seed: int, point: int, *, lost: bool) -> None:
        super().__init__(seed, [Event("K1", target=RunKind.NIGHT, point=point)])
        self._lost = lost
        self.taken = self.more = 0
        self.back_at = EVENING
        self.ends: list[Report] = []

    def _play_night(self) -> Played:
        self.world.custom_fields.define(self.site.policy.marker)  # as `rotate init` does
        self._half(RunKind.NIGHT)
        self.taken = sum(1 for vm in self._desktops() if vm.state.power is Power.SUSPENDED)
        if self._lost:
            self._store = NightStore(self._boundary, lambda: len(self.world.ledger), lambda: False)
        self._return()
        if self.ends[-1].exit_code:  # what was under way as it was killed may come late, and is named until then
            self._wait_until(self.world.clock.now() + LATE)
            self._return()
        self.back_at, effects_before = self.world.clock.now(), len(effects(self.played))
        self._return()
        self.more = len(effects(self.played)) - effects_before
        return self.played

    def _return(self) -> None:
        self._running = "rotate restore"  # what kills evenings does not kill it
        vcenter: Any = self._connect(self._boundary)
        site = self._place(vcenter)
        self.ends.append(restore(self.site.policy, site, (), from_markers=self._lost, apply=True, consent=agreed))
        vcenter.close()

    def _desktops(self) -> Iterator[Any]:
        return (self.world.find(ref) for ref in self.played.running)

    def wrong(self) -> list[str]:
        """Whatever is not as it was before the evening."""
        key = self.world.custom_fields.define(self.site.policy.marker)
        started = {entry.moid for entry in effects(self.played, START) if not is_desktop(self.played, entry.moid)}
        vms: list[Any] = list(self.world.by_type("VirtualMachine"))
        return [
            *(f"{vm.name} is {vm.state.power}" for vm in self._desktops() if vm.state.power is not Power.ON),
            *(f"{vm.name} still runs" for vm in vms if vm.moid in started and vm.state.power is Power.ON),
            *(f"{vm.name} keeps its marker" for vm in vms if vm.state.attributes.get(key)),
            *(["it took too long"] if self.back_at > min(EVENING + HURRY, CLOSES) else []),
            *([f"once more ends with {self.ends[-1].exit_code}"] if self.ends[-1].exit_code else []),
            *([f"once more has {self.more} effects"] if self.more else []),
            *self.world.bugs,
        ]


def count_returns(seed: int, *, lost: bool) -> tuple[int, int, list[str]]:
    """How many effects the evening of a seed had been cut off after, how often a desktop was suspended then, and what
    the return left undone."""
    points, suspended_count, wrong = 0, 0, list[str]()
    for point in count(2, 2):  # after each append and each effect
        night = CutShort(seed, point, lost=lost)
        night.play()
        if night.played.calls[0][1] != "killed":
            break
        points, suspended_count = points + 1, suspended_count + (night.taken > 0)
        wrong += [f"seed {seed}, cut off at {point}: {violation}" for violation in night.wrong()]
    return points, suspended_count, wrong


@pytest.mark.parametrize("lost", [False, True], ids=["by the journal", "by the markers"])
def test_a_return_at_once_brings_everybody_back(lost: bool) -> None:
    points, suspended_count, wrong = count_returns(162, lost=lost)
    assert wrong == []
    assert points > suspended_count > 5


def test_a_lease_that_is_written_after_its_run_was_killed_is_known_to_be_dead() -> None:
    """vCenter queues the lease of the return behind it, and refuses that as made for an older configuration."""
    night = CutShort(240, 2, lost=True)
    night.play()
    assert night.wrong() == []


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", [False, True], ids=["by the journal", "by the markers"])
def test_in_twenty_nights_a_return_at_any_moment_brings_everybody_back(lost: bool) -> None:
    """Where ML VMs may be powered off: what the policy leaves running keeps desktops away. A quarter a run."""
    seeds = islice((seed for seed in count(200, 2) if site_of(seed).policy.ml_stop.then_off), WORLDS)
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        results_of_nights = list(pool.map(partial(count_returns, lost=lost), every_nth(list(seeds), 4)))
    points, suspended_count = (
        sum(number for number, _, _ in results_of_nights),
        sum(number for _, number, _ in results_of_nights),
    )
    print(f"{points} moments of {len(results_of_nights)} nights, at {suspended_count} of them a desktop was away")
    assert [violation for _, _, wrong in results_of_nights for violation in wrong] == []
    assert suspended_count > 30
