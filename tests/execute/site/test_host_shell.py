"""Many hosts are asked at the same time: none waits for another's answer."""

from __future__ import annotations

from threading import Barrier, BrokenBarrierError

import pytest

from gpuops.errors import NotConnected
from gpuops.execute.site.host_shell import MOST, ask_in_parallel


def test_answers_come_in_the_order_of_the_questions() -> None:
    assert ask_in_parallel(lambda number: number * 2, list(range(3 * MOST))) == [
        number * 2 for number in range(3 * MOST)
    ]
    assert ask_in_parallel(str, []) == []


def test_all_are_asked_before_one_has_answered() -> None:
    barrier = Barrier(MOST)
    ask_in_parallel(lambda _: barrier.wait(30), range(MOST))
    with pytest.raises(BrokenBarrierError):
        ask_in_parallel(lambda _: Barrier(2).wait(0.01), range(2))


def test_an_error_is_the_askers() -> None:
    def ask(number: int) -> int:
        if number == 1:
            raise NotConnected("vCenter has gone")
        return number

    with pytest.raises(NotConnected, match="vCenter has gone"):
        ask_in_parallel(ask, range(3))
