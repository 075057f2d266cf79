"""The pool: what it remembers changes no answer, what is taken can be given back, and its prices are the known ones."""

from __future__ import annotations

from math import exp
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuops.plan.placement.fleet.geometry import (
    LargeShapes,
    PoolRequest,
    ShapeArrays,
    chance_of_at_least,
    count_places,
    place_prices,
    slot_prices,
)
from tests.bench.trace.vgpu_across import Hosts
from tests.bench.trace.vgpu_world import Mig, SameSize

CPU, MEMORY = 48, 192


def shapes() -> tuple[ShapeArrays, LargeShapes]:
    """A mix of small, half and whole GPUs, and of four whole ones."""
    kind, count = np.array([0, 3, 4, 4]), np.array([1, 1, 1, 4])
    size, cpu, memory = np.array([5, 20, 40, 40]), np.array([4, 8, 12, 40]), np.array([16, 32, 64, 160])
    mix = ShapeArrays(tuple(range(5)), kind, count, size, cpu, memory, np.array([0.4, 0.3, 0.2, 0.1]))
    several = LargeShapes(count[3:], count[3:], cpu[3:], memory[3:], np.array([0.1]), 40, 30.0)
    return mix, several


def pool(hosts: int = 3) -> Hosts:
    rows = 2 * hosts
    mix, large = shapes()
    free = np.full(rows, CPU), np.full(rows, MEMORY)
    return Hosts(Mig(), np.ones((rows, 4), np.int64), *free, mix, step=0.04, large=large)


asks = st.builds(
    lambda kind, count, cpu, memory: PoolRequest(kind if count == 1 else 4, count, cpu, memory),
    st.integers(0, 4),
    st.sampled_from([1, 1, 1, 1, 2, 4, 8]),
    st.sampled_from([2, 8, 24, 60, 90]),
    st.sampled_from([8, 64, 150, 300]),
)


@pytest.mark.long
@settings(max_examples=25)
@given(st.lists(asks, min_size=1, max_size=25))
def test_what_is_remembered_changes_no_answer(wanted: list[PoolRequest]) -> None:
    known = pool()
    for ask in wanted:
        mix, large = shapes()
        anew = Hosts(Mig(), known.state, known.cpu, known.memory, mix, step=0.04, large=large)
        anew.cpu_whole, anew.memory_whole = CPU, MEMORY
        seat = known.choose(ask)
        assert seat == anew.choose(ask)
        if seat is not None:
            known.take(seat)
            assert (known.cpu >= 0).all()
            assert (known.memory >= 0).all()


@settings(max_examples=20)
@given(st.lists(asks, min_size=1, max_size=30), st.randoms())
def test_what_was_taken_can_be_given_back(wanted: list[PoolRequest], chance: Random) -> None:
    world = pool()
    empty = world.value.copy(), world.places.copy()
    there = []
    for ask in wanted:
        seat = world.choose(ask)
        if seat is not None:
            world.take(seat)
            there.append((ask, seat))
    chance.shuffle(there)
    for ask, seat in there:
        for part in seat.parts:
            now = [int(world.state[part.row, gpu]) for gpu in part.gpus]
            states = [
                Mig().without(s, ask.kind, before, after)
                for s, before, after in zip(now, part.before, part.after, strict=True)
            ]
            world.give(part, states)
    assert (world.state == 1).all()
    assert (world.cpu == CPU).all()
    np.testing.assert_allclose(world.value, empty[0])
    np.testing.assert_array_equal(world.places, empty[1])


@settings(max_examples=20)
@given(st.lists(asks, max_size=20), asks)
@example(
    [PoolRequest(0, 1, 90, 8), PoolRequest(4, 4, 8, 8)], PoolRequest(4, 2, 8, 300)
)  # GPUs on the second node, memory on both
def test_a_vm_is_refused_only_where_no_host_has_room(wanted: list[PoolRequest], last: PoolRequest) -> None:
    world = pool(2)
    for ask in wanted:
        seat = world.choose(ask)
        if seat is not None:
            world.take(seat)
    room = [
        sum(bool(Mig().after(int(state), last.kind)) for state in world.state[row : row + 2].flat)
        for row in range(0, 4, 2)
    ]
    able = [
        gpus >= last.count
        and world.cpu[2 * host : 2 * host + 2].sum() >= last.cpu
        and world.memory[2 * host : 2 * host + 2].sum() >= last.memory
        for host, gpus in enumerate(room)
    ]
    assert (world.choose(last) is not None) == any(able)


def test_what_fits_on_a_node_stays_on_it() -> None:
    seat = pool().choose(PoolRequest(4, 4, 40, 160))
    assert seat is not None
    assert seat.local
    assert len(seat.parts) == 1


def test_what_is_wider_than_a_node_is_split_evenly() -> None:
    seat = pool().choose(PoolRequest(4, 8, 90, 300))
    assert seat is not None
    assert seat.local
    assert [(len(part.gpus), part.cpu, part.memory) for part in seat.parts] == [(4, 45, 150), (4, 45, 150)]


def test_a_begun_gpu_before_an_empty_one() -> None:
    world = pool(1)
    first = world.choose(PoolRequest(0, 1, 4, 16))
    assert first is not None
    world.take(first)
    second = world.choose(PoolRequest(0, 1, 4, 16))
    assert second is not None
    assert (second.parts[0].row, second.parts[0].gpus) == (first.parts[0].row, first.parts[0].gpus)


def test_every_way_to_fill_a_gpu_that_is_needed_sells_for_the_same() -> None:
    """Two halves or one of six tenths: the second leaves the rest to nobody, and sets the price of the first."""
    fillings = np.array([[2, 0], [0, 1]])
    found = slot_prices(
        np.array([0.5, 0.6]), np.array([1.0, 1.0]), lambda place_prices: fillings[(fillings @ place_prices).argmax()]
    )
    assert 2 * found[0] == pytest.approx(found[1], abs=0.02)
    assert found[1] == pytest.approx(0.6, abs=0.02)


def test_prices_of_sizes_that_fill_a_gpu_are_their_sizes() -> None:
    geometry = SameSize()
    sizes = np.array(geometry.sizes) / 40
    fillings = geometry.fillings()
    found = slot_prices(sizes, np.ones(6), lambda place_prices: fillings[(fillings @ place_prices).argmax()])
    np.testing.assert_allclose(found, sizes, atol=0.02)


@pytest.mark.parametrize(("many", "mean", "chance"), [(0, 3, 1.0), (1, 0.5, 1 - exp(-0.5)), (2, 0.0, 0.0)])
def test_chance_of_so_many(many: int, mean: float, chance: float) -> None:
    assert chance_of_at_least(many, mean) == pytest.approx(chance)


def test_chance_of_so_many_where_many_come_is_near_the_exact_one() -> None:
    assert chance_of_at_least(50, 50.0) == pytest.approx(chance_of_at_least(50, 50.001), abs=0.02)


def test_the_last_place_of_a_large_shape_is_dear_and_one_of_many_is_not() -> None:
    _, large = shapes()
    few, many = place_prices(large, np.array([1]), 960.0)[0], place_prices(large, np.array([30]), 960.0)[0]
    assert few > 0.9 * 160
    assert many < 1


def test_places_need_gpus_cpu_and_memory() -> None:
    _, large = shapes()
    gains = np.zeros((3, 7), dtype=np.int64)
    gains[:, 4] = [4, 4, 3]
    found = count_places(large, gains, np.array([48, 39, 48]), np.array([192, 192, 192]))
    assert found[:, 0].tolist() == [1, 0, 0]
