"""The pool: what it remembers changes no answer, what is taken can be given back, and its prices are the known ones."""

from __future__ import annotations

from math import exp
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuops.plan.placement.fleet.geometry import (
    PoolRequest,
    ShapeFrequency,
    Shapes,
    chance_of_at_least,
    count_places,
    make_shapes,
    scarcity_prices,
)
from tests.bench.trace.vgpu_across import Hosts
from tests.bench.trace.vgpu_world import Mig

CPU, MEMORY = 48, 192


SIZES = dict(enumerate(Mig.sizes))


def shapes() -> Shapes:
    """A mix of small, half and whole GPUs, and of four and eight whole ones."""
    frequencies = [
        (0, 1, 4, 16, 0.4),
        (3, 1, 8, 32, 0.3),
        (4, 1, 12, 64, 0.2),
        (4, 4, 40, 160, 0.08),
        (4, 8, 80, 300, 0.02),
    ]
    return make_shapes([ShapeFrequency(*frequency) for frequency in frequencies], SIZES)


def pool(hosts: int = 3) -> Hosts:
    rows = 2 * hosts
    free = np.full(rows, CPU), np.full(rows, MEMORY)
    return Hosts(Mig(), np.ones((rows, 4), np.int64), *free, shapes(), step=0.04)


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
def test_what_is_remembered_changes_no_answer(pool_requests: list[PoolRequest]) -> None:
    pool_hosts = pool()
    for ask in pool_requests:
        anew = Hosts(Mig(), pool_hosts.state, pool_hosts.cpu, pool_hosts.memory, shapes(), step=0.04)
        anew.cpu_whole, anew.memory_whole = CPU, MEMORY
        seat = pool_hosts.choose(ask)
        assert seat == anew.choose(ask)
        if seat is not None:
            pool_hosts.take(seat)
            assert (pool_hosts.cpu >= 0).all()
            assert (pool_hosts.memory >= 0).all()


@settings(max_examples=20)
@given(st.lists(asks, min_size=1, max_size=30), st.randoms())
def test_what_was_taken_can_be_given_back(pool_requests: list[PoolRequest], chance: Random) -> None:
    world = pool()
    empty = world.value.copy(), world.places.copy()
    seated = []
    for ask in pool_requests:
        seat = world.choose(ask)
        if seat is not None:
            world.take(seat)
            seated.append((ask, seat))
    chance.shuffle(seated)
    for ask, seat in seated:
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
def test_a_vm_is_refused_only_where_no_host_has_room(pool_requests: list[PoolRequest], last: PoolRequest) -> None:
    world = pool(2)
    for ask in pool_requests:
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


def test_waste_is_what_chance_leaves_of_a_gpu() -> None:
    """A 3g on an empty GPU: as likely a second one, then a full GPU, or a 1g, which leaves no room for it and is
    followed by two more and 5 GB that only memory slices are left of."""
    geometry = Mig()
    geometry.demand = [1.0, 0.0, 1.0, 0.0, 0.0]
    after_3g = geometry.after(1, 2)[1]
    assert geometry.waste(1 + 0xFF) == 0
    assert geometry.waste(after_3g) == pytest.approx(0.0)


def test_equal_devices_are_one_shape_with_the_mean_of_cpu_and_memory() -> None:
    frequencies = [
        ShapeFrequency(4, 1, 10, 100, 3.0),
        ShapeFrequency(4, 1, 20, 200, 1.0),
        ShapeFrequency(4, 2, 8, 64, 4.0),
    ]
    pool_shapes = make_shapes(frequencies, SIZES)
    assert pool_shapes.count.tolist() == [1, 2]
    assert pool_shapes.cpu.tolist() == [12, 8]
    assert pool_shapes.memory.tolist() == [125, 64]
    assert pool_shapes.share.tolist() == [0.5, 0.5]
    assert pool_shapes.at_least.tolist() == [1.0, 0.5]
    assert pool_shapes.mean == 60


@pytest.mark.parametrize(("many", "mean", "chance"), [(0, 3, 1.0), (1, 0.5, 1 - exp(-0.5)), (2, 0.0, 0.0)])
def test_chance_of_so_many(many: int, mean: float, chance: float) -> None:
    assert chance_of_at_least(many, mean) == pytest.approx(chance)


def test_chance_of_so_many_where_many_come_is_near_the_exact_one() -> None:
    assert chance_of_at_least(50, 50.0) == pytest.approx(chance_of_at_least(50, 50.001), abs=0.02)


def test_the_last_place_of_a_shape_is_dear_and_one_of_many_is_not() -> None:
    mix = shapes()
    few, many = (scarcity_prices(mix, np.full(5, places), 960.0)[3] for places in (1, 30))
    assert few > 0.9 * 160
    assert many < 1


def test_places_need_gpus_cpu_and_memory() -> None:
    gains = np.zeros((3, 5), dtype=np.int64)
    gains[:, 2] = [4, 4, 3]
    places = count_places(shapes(), gains, np.array([48, 39, 48]), np.array([192, 192, 192]))
    assert places[:, 3].tolist() == [1, 0, 0]
