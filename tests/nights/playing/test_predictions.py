"""Nights in which nothing goes wrong do what was predicted; where hosts go by other rules that is noticed, and all
desktops come back the same."""

from __future__ import annotations

import pytest
from pytest_mock import MockerFixture, MockType

from gpuops.execute.steps.predictions import Predictions
from gpuops.model.prediction import Misprediction, Predicted
from gpuops.sim.state.gpu_admission import Deviation, GpuOrder
from tests.nights.judging.checkers import violations
from tests.nights.playing.night import Nightly
from tests.sample import every_nth, mostly_long

pytestmark = pytest.mark.long


@pytest.fixture
def compared(mocker: MockerFixture) -> MockType:
    """What each step came to, beside what was predicted of it."""
    return mocker.spy(Predictions, "compared")


def of(compared: MockType) -> tuple[int, list[Misprediction]]:
    """(How many steps did as predicted, where others did not.)"""
    known = [each for each in compared.spy_return_list if each is not None]
    return sum(not each.wrong and not each.cannot_say for each in known), [one for each in known for one in each.wrong]


@pytest.mark.drawn_cases(4)
@pytest.mark.parametrize(
    ("seeds", "nth"),
    mostly_long(
        [(range(24), 3), *((range(at, min(at + 100, 1024)), 4) for at in (0, *range(24, 1024, 100)))], [(range(24), 3)]
    ),
)
def test_a_night_without_trouble_has_none(compared: MockType, seeds: range, nth: int) -> None:
    tried = every_nth(seeds, nth)
    for seed in tried:
        Nightly(seed, ()).play()
    right, wrong = of(compared)
    assert wrong == []
    assert right >= 3 * len(tried)


@pytest.mark.parametrize("seed", [9, 28])
def test_hosts_that_fill_the_fullest_gpu_are_noticed_and_nothing_is_lost(compared: MockType, seed: int) -> None:
    """Some of these VMs start together."""
    night = Nightly(seed, ())
    for host in night.world.by_type("HostSystem"):
        host.state.deviation = Deviation(gpus=GpuOrder.FULLEST)
    played = night.play()
    right, wrong = of(compared)
    assert {each.what for each in wrong} == {Predicted.GPU}
    assert right > len(wrong)
    assert list(violations(played)) == []
