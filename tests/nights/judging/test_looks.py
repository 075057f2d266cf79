"""No step goes by an old look: none older than 30 s, none from before another change of ours to the same VM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.api import Site, run
from gpuops.clock import wall_clock
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.nights.judging.looks import Looks, looking
from tests.nights.playing.soap import play_over_soap
from tests.sample import every_nth, mostly_long
from tests.wire.conftest import serve, target_of

__all__ = ["serve"]

SEEDS = range(20_000, 20_004)
"""Each draws a site, a policy, users, and faults of vCenter and network: slow replies, lost ones, tasks that fail."""
MANY = range(20_004, 20_200)

NOW = datetime(2026, 11, 2, tzinfo=UTC)


def nights(seeds: Sequence[int]) -> tuple[list[str], int]:
    """What was wrong in these nights, and how many steps they had."""
    wrong, steps = [], 0
    for seed in seeds:
        with looking() as looks:
            play_over_soap(seed)
        wrong += [f"seed {seed}: {problem}" for problem in looks.wrong]
        steps += looks.steps
    return wrong, steps


@pytest.mark.parametrize("nth", mostly_long([2, 1], [2]))
def test_no_step_of_a_night_and_its_morning_goes_by_an_old_look(nth: int) -> None:
    wrong, steps = nights(every_nth(SEEDS, nth))
    assert wrong == []
    assert steps > (30 if nth == 1 else 3)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(2))
def test_no_step_of_many_nights_goes_by_an_old_look(part: int) -> None:
    """A twelfth of them a run. Two in five have no step: of 24 draws the poorest has 41."""
    wrong, steps = nights(every_nth(MANY[part::2], 12))
    assert wrong == []
    assert steps > 10


@pytest.mark.long
def test_no_change_of_a_vm_goes_by_an_old_look(serve: Callable[[str], SimServer], tmp_path: Path) -> None:
    requests = (Attach("ml-07", profile="a100-3-20c"), Detach("ml-07", all=True))
    with (
        looking() as looks,
        Connection(target_of(serve("lab"))) as connection,
        Site(connection, tmp_path, wall_clock) as site,
    ):
        for request in requests:
            assert run(request, site, apply=True).outcomes
    assert looks.wrong == []
    assert looks.steps >= len(requests)


@pytest.mark.parametrize(
    ("after_s", "wrong"),
    [(30, []), (31, ["SuspendVM_Task of vm-1 by a look 31 s old"])],
)
def test_the_age_of_a_look_is_told(after_s: int, wrong: list[str]) -> None:
    looks = Looks()
    looks.looked(["vm-1"], NOW)
    looks.sent("SuspendVM_Task", "vm-1", NOW + timedelta(seconds=after_s))
    assert looks.wrong == wrong


def test_a_look_from_before_a_change_of_ours_is_told() -> None:
    looks = Looks()
    looks.looked([], NOW)
    looks.written.add("vm-1")
    looks.sent("SuspendVM_Task", "vm-1", NOW)
    assert looks.wrong == ["SuspendVM_Task of vm-1 by a look before an earlier change of ours"]
