"""What each team had: the order in which VMs are served, and the shares of GPU-hours by owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.gpu_hours import (
    NO_USE,
    TeamUse,
    Wish,
    fair_order,
    largest_remainder,
    owner_in,
    showback,
    use_by_team,
)
from gpuops.model.nights.fair_share import NO_OWNER
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NOBODY, NotedOwner, OwnerKey
from gpuops.model.vcenter.vm import Vm

NOW = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
WEEK = timedelta(days=7)
TEAMS = ("a", "b", "c")


def ran(
    team: str, begins_h: float | None, ends_h: float | None, *, gpus: float | None = 1.0, itself: bool = False
) -> PastVm:
    """An ML VM of the team that ran from so many hours before now until so many; None = no record tells, or it runs."""
    period = HeldPeriod(
        None if begins_h is None else NOW - begins_h * HOUR, None if ends_h is None else NOW - ends_h * HOUR, itself
    )
    return PastVm(f"ref-{team}", None, team, Role.ML, ("a40-48c",), gpus, (period,), closed=True)


def use(*vms: PastVm, half_life: timedelta = WEEK) -> dict[str, TeamUse]:
    night = PastNight("2026-11-20", "vc", NOW, "policy", (), vms, ())
    return use_by_team([night], lambda vm: vm.name, NOW, half_life)


def test_an_hour_of_one_half_life_ago_counts_half_and_leaves_the_week() -> None:
    use_by_team = use(ran("a", 1, 0), ran("b", 7 * 24 + 1, 7 * 24), ran("c", 14 * 24 + 1, 14 * 24))
    assert [round(use_by_team[team].decayed, 2) for team in TEAMS] == [1.0, 0.5, 0.25]
    assert [use_by_team[team].week for team in TEAMS] == [1.0, 0.0, 0.0]


def test_of_a_run_that_began_before_the_week_its_last_part_counts() -> None:
    assert use(ran("a", 7 * 24 + 3, 7 * 24 - 2))["a"].week == pytest.approx(2.0)


def test_one_that_runs_counts_until_now_and_one_that_ended_by_itself_until_it_was_seen() -> None:
    use_by_team = use(ran("a", 4, None, gpus=0.5), ran("b", 6, 1, itself=True))
    assert (use_by_team["a"].week, use_by_team["b"].week) == (2.0, 5.0)


def test_what_cannot_be_counted_is_said() -> None:
    assert use(ran("a", 3, 1, gpus=None), ran("a", None, 1)) == {"a": TeamUse(unknown=2)}


def test_vms_of_nobody_are_a_team() -> None:
    assert set(use(ran("", 2, 1))) == {NO_OWNER}


@given(st.lists(st.tuples(st.sampled_from(TEAMS), st.integers(1, 160), st.integers(0, 20)), max_size=20))
def test_without_decay_the_hours_are_those_of_the_report(runs: list[tuple[str, int, int]]) -> None:
    vms = [ran(team, age + length, age) for team, age, length in runs if age + length <= 7 * 24]
    use_by_team = use(*vms, half_life=timedelta(days=10_000_000))
    night = PastNight("2026-11-20", "vc", NOW, "policy", (), tuple(vms), ())
    for share in showback([night], lambda vm: vm.name).owners:
        assert use_by_team[share.owner].week == pytest.approx(share.hours.exact)
        assert use_by_team[share.owner].decayed == pytest.approx(share.hours.exact, abs=1e-3)


wishes = st.lists(st.builds(Wish, st.sampled_from(TEAMS), st.floats(0.1, 40)), max_size=14)
uses = st.dictionaries(st.sampled_from(TEAMS), st.floats(0, 500))
weights = st.fixed_dictionaries({team: st.sampled_from([0.5, 1.0, 2.0, 3.0]) for team in TEAMS})


@given(wishes, uses, weights)
def test_everybody_has_one_place_and_a_team_keeps_its_order(
    waiting: list[Wish], used: dict[str, float], weight: dict[str, float]
) -> None:
    order = fair_order(waiting, used, weight.__getitem__)
    assert sorted(order) == list(range(len(waiting)))
    for team in TEAMS:
        mine = [at for at in order if waiting[at].team == team]
        assert mine == sorted(mine)


@given(wishes, uses, weights)
def test_nobody_is_served_before_a_team_that_had_less_for_its_weight(
    waiting: list[Wish], used: dict[str, float], weight: dict[str, float]
) -> None:
    """Written anew: at each turn the team that is served has the least level of those that still wait."""
    had = {team: used.get(team, 0.0) for team in TEAMS}
    remaining = list(fair_order(waiting, used, weight.__getitem__))
    while remaining:
        at, *remaining = remaining
        team = waiting[at].team
        levels = {
            waiting[index].team: had[waiting[index].team] / weight[waiting[index].team] for index in (at, *remaining)
        }
        assert levels[team] <= min(levels.values()) + 1e-8
        had[team] += waiting[at].hours


hundredths = st.integers(0, 50_000).map(lambda number: number / 100)
on_a_grid = st.lists(
    st.builds(Wish, st.sampled_from(TEAMS), st.integers(1, 400).map(lambda each: each / 10)), max_size=14
)


@given(
    on_a_grid,
    st.dictionaries(st.sampled_from(TEAMS), hundredths),
    weights,
    st.sampled_from([0.01, 0.1, 0.5, 0.9, 1.0]),
    st.dictionaries(st.sampled_from("bc"), hundredths),
)
def test_a_team_that_waits_and_does_not_run_never_comes_later(
    waiting: list[Wish], used: dict[str, float], weight: dict[str, float], decay: float, added: dict[str, float]
) -> None:
    """All use decays to the same part, and others add to theirs: the first VM of the team has no later place.

    Numbers are on a grid: two that are equal but for their tenth digit are one level, and the file's order decides.
    """
    later = {team: hours * decay + (added.get(team, 0.0) if team != "a" else 0.0) for team, hours in used.items()}
    later = {**added, **later}
    before, after = (first_place("a", waiting, hours_used, weight) for hours_used in (used, later))
    assert after <= before


def first_place(team: str, waiting: Sequence[Wish], used: dict[str, float], weight: dict[str, float]) -> int:
    order = fair_order(waiting, used, weight.__getitem__)
    return next((place for place, at in enumerate(order) if waiting[at].team == team), 0)


def test_equal_teams_take_turns_and_twice_the_weight_is_two_turns() -> None:
    waiting = [Wish(team, 10) for team in "aaabbb"]
    assert "".join(waiting[at].team for at in fair_order(waiting, {}, lambda team: 1.0)) == "ababab"
    twice = {"a": 2.0, "b": 1.0}
    assert "".join(waiting[at].team for at in fair_order(waiting, {}, twice.__getitem__)) == "abaabb"
    assert "".join(waiting[at].team for at in fair_order(waiting, {"a": 25}, lambda team: 1.0)) == "bbbaaa"


def test_the_order_of_sums_decides_nothing() -> None:
    """0.1 + 0.2 and 0.3 are one level."""
    waiting = [Wish("a", 1), Wish("b", 1)]
    assert fair_order(waiting, {"a": 0.1 + 0.2, "b": 0.3}, lambda team: 1.0) == [0, 1]


def test_uses_add_up() -> None:
    assert TeamUse(1.0, 2.0, 3) + replace(NO_USE, unknown=1) == TeamUse(1.0, 2.0, 4)


AT = datetime(2026, 11, 20, 20, tzinfo=UTC)
amounts = st.lists(st.floats(0, 1e6, allow_nan=False), max_size=60)


def ml(
    name: str, hours: float, *, uuid: str | None = None, by_itself: bool = False, gpus: float | None = 1.0
) -> PastVm:
    periods = (HeldPeriod(AT, AT + timedelta(hours=hours), by_itself),)
    return PastVm(f"ref-{name}", uuid or f"uuid-{name}", name, Role.ML, ("a40-48c",), gpus, periods, closed=True)


def night(*vms: PastVm) -> PastNight:
    return PastNight("2026-11-20", "vc", AT, "policy", (), vms, ())


def test_who_had_it_is_as_the_journal_noted_it_by_the_same_key() -> None:
    """A VM that is gone, or was tagged anew, is still whose it was."""
    noted = replace(ml("gone", 2), owner=NotedOwner("tag:team", "vision"))
    nowhere = Inventory("vc", "8.0.3", AT, {}, {}, {}, {})
    assert owner_in(nowhere, OwnerKey("tag", "team"))(noted) == "vision"
    assert owner_in(nowhere, OwnerKey("folder"))(noted) == NOBODY


@given(amounts)
def test_parts_add_up_to_the_whole_and_are_off_by_less_than_one(drawn_amounts: list[float]) -> None:
    parts = largest_remainder(drawn_amounts)
    if sum(drawn_amounts) <= 0:
        assert parts == [None] * len(drawn_amounts)
        return
    known_parts = [part for part in parts if part is not None]
    assert sum(known_parts) == 10_000
    for amount, part in zip(drawn_amounts, known_parts, strict=True):
        assert abs(part - 10_000 * amount / sum(drawn_amounts)) < 1 + 1e-6


@given(amounts)
def test_who_had_more_has_no_smaller_part(drawn_amounts: list[float]) -> None:
    pairs = sorted(
        zip(drawn_amounts, largest_remainder(drawn_amounts), strict=True), key=lambda pair: (pair[0], pair[1] or 0)
    )
    assert [part for _, part in pairs] == sorted((part for _, part in pairs), key=lambda part: part or 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.01, 20)), min_size=1, max_size=20))
def test_every_hour_is_of_one_owner(runs: list[tuple[str, float]]) -> None:
    vms = [ml(f"{owner}-{number}", hours) for number, (owner, hours) in enumerate(runs)]
    shares = showback([night(*vms)], lambda vm: vm.name[0])
    assert {owner_share.owner for owner_share in shares.owners} == {owner for owner, _ in runs}
    assert shares.hours.exact == pytest.approx(sum(hours for _, hours in runs))
    assert sum(owner_share.hundredths or 0 for owner_share in shares.owners) == 10_000
    assert sum(owner_share.vms for owner_share in shares.owners) == len(runs) == len(shares.runs)


def test_hours_that_are_not_certain_are_said_to_be_at_least() -> None:
    shares = showback([night(ml("a", 2), ml("b", 3, by_itself=True), ml("c", 1, gpus=None))], lambda vm: vm.name)
    hours = {
        owner_share.owner: (owner_share.hours.at_least, owner_share.hours.exact, owner_share.percent)
        for owner_share in shares.owners
    }
    assert hours == {"a": (2.0, 2.0, 100.0), "b": (0.0, None, 0.0), "c": (0.0, None, 0.0)}
    assert showback([night(ml("b", 3, by_itself=True))], lambda vm: vm.name).owners[0].percent is None


def test_owners_by_folder_tag_and_attribute_as_vcenter_shows_the_vm_now() -> None:
    vm = Vm(
        "vm-9", "ml-01", "/dc/vm/ml/team-a/ml-01", "uuid-1", attributes={"owner": " ann "},
        tags=("team:blue", "team:red", "tier:gold"),
    )  # fmt: skip
    inventory = Inventory("vc", "8.0.3.0", AT, vms={vm.ref: vm})
    past = ml("old-name", 1, uuid="uuid-1")
    owners = {
        str(key): owner_in(inventory, key)(past)
        for key in (OwnerKey(), OwnerKey("tag", "team"), OwnerKey("attribute", "owner"), OwnerKey("tag", "none"))
    }
    assert owners == {"folder": "ml/team-a", "tag:team": "blue, red", "attribute:owner": "ann", "tag:none": NOBODY}
    assert owner_in(inventory, OwnerKey())(ml("gone", 1)) == NOBODY


def test_another_vm_with_the_id_of_one_that_is_gone_is_not_its_owner() -> None:
    other_vm = Vm("ref-ml-01", "web", "/dc/vm/web/web", "uuid-2")
    inventory = Inventory("vc", "8.0.3.0", AT, vms={other_vm.ref: other_vm})
    assert owner_in(inventory, OwnerKey())(ml("ml-01", 1)) == NOBODY
