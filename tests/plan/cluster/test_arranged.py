"""How the VMs of a cluster are dealt out to hosts, on generated numbers of free places."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.clusters.plan import distribute_vms
from gpuops.model.workloads.cluster import Arrangement

ROOM = st.dictionaries(st.sampled_from([f"host-{n}" for n in range(6)]), st.integers(0, 5), min_size=1)


@given(ROOM, st.integers(1, 20), st.sampled_from(Arrangement))
def test_all_have_a_place_where_there_is_room_or_none_has(
    room: dict[str, int], number: int, arrangement: Arrangement
) -> None:
    counts = distribute_vms(arrangement, room, {}, number)
    if sum(room.values()) < number:
        assert counts is None
        return
    assert counts is not None
    assert sum(counts.values()) == number
    assert all(0 < count <= room[host] for host, count in counts.items())


@given(ROOM, st.integers(1, 20))
def test_packed_takes_as_few_hosts_as_hold_them(room: dict[str, int], count: int) -> None:
    counts = distribute_vms(Arrangement.PACKED, room, {}, count)
    if counts is None:
        return
    fewest = next(
        n for n in range(1, 7) if any(sum(combination) >= count for combination in combinations(room.values(), n))
    )
    assert len(counts) == fewest


@given(ROOM, st.integers(1, 20))
def test_spread_has_no_two_hosts_that_could_be_evened_out(room: dict[str, int], number: int) -> None:
    counts = distribute_vms(Arrangement.SPREAD, room, {}, number)
    if counts is None:
        return
    full = {host: counts.get(host, 0) for host in room}
    for count in full.values():
        assert all(count <= full[other_host] + 1 for other_host in room if full[other_host] < room[other_host])


def test_what_is_missing_goes_beside_what_is_there() -> None:
    assert distribute_vms(Arrangement.PACKED, {"a": 4, "b": 2}, {"b": 1}, 2) == {"b": 2}
    assert distribute_vms(Arrangement.SPREAD, {"a": 4, "b": 2}, {"b": 1}, 2) == {"a": 2}


def test_packed_ends_on_the_smallest_host_that_holds_the_rest() -> None:
    assert distribute_vms(Arrangement.PACKED, {"a": 2, "b": 4, "c": 3}, {}, 5) == {"b": 4, "a": 1}
    assert distribute_vms(Arrangement.SPREAD, {"a": 2, "b": 4, "c": 3}, {}, 5) == {"b": 2, "c": 2, "a": 1}
