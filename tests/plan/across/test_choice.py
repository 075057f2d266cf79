"""Which site a request across sites goes to: best and longest, never two, never above what a team may have."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.model.nights.across_sites import Assignment
from gpuops.model.nights.fair_share import Team
from gpuops.model.nights.history import HeldPeriod, JobTime, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.plan.across.choice import AcrossSites, Fate, changes, choose
from gpuops.plan.rotation.ml_queue.queue_look import Turn
from tests.plan.across.worlds import BY_TEAM, EVENING, HALF, Fleet, Request, SiteWorld, reason_of, sites_of


def fates(found: AcrossSites) -> dict[str, str]:
    return {each.name: each.fate.value for each in found.choices}


def test_it_goes_where_the_most_is_free_afterwards() -> None:
    fleet = Fleet([SiteWorld("fra", 1), SiteWorld("muc", 2)], [Request("ml-1")])
    found = fleet.assign()
    assert sites_of(found) == {"ml-1": "muc"}
    assert reason_of(found, "ml-1") == "fits best and longest; 3 GPUs of its model are free afterwards"


def test_of_equal_room_where_it_runs_the_longest_and_then_by_name() -> None:
    fleet = Fleet([SiteWorld("fra", back_by_h=5), SiteWorld("muc", back_by_h=7)], [Request("ml-1")])
    assert sites_of(fleet.assign()) == {"ml-1": "muc"}
    fleet = Fleet([SiteWorld("muc"), SiteWorld("fra")], [Request("ml-1")])
    assert sites_of(fleet.assign()) == {"ml-1": "fra"}


def test_where_it_would_run_too_short_it_does_not_go() -> None:
    fleet = Fleet([SiteWorld("fra", 3, back_by_h=3), SiteWorld("muc", 1)], [Request("ml-1", minimum_h=8)])
    found = fleet.assign()
    assert sites_of(found) == {"ml-1": "muc"}
    assert reason_of(found, "ml-1").startswith("starts there alone")


def test_what_fits_nowhere_waits_with_each_site_s_reason() -> None:
    fleet = Fleet([SiteWorld("fra", board="l40s"), SiteWorld("muc", board="l40s")], [Request("ml-1")])
    found = fleet.assign()
    assert (sites_of(found), fleet.assigned) == ({"ml-1": None}, {})
    assert "fra: does not fit" in reason_of(found, "ml-1") and "; muc: does not fit" in reason_of(found, "ml-1")


def test_requests_spread_and_each_night_starts_what_is_its_own() -> None:
    """A site's first plan counts all of them: what goes elsewhere makes room in the next round."""
    requests = [Request(f"ml-{number}") for number in range(1, 8)]
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc"), SiteWorld("ber")], requests)
    found = fleet.assign()
    assert Counter(fates(found).values()) == {"goes": 6, "waits": 1}
    assert [len(fleet.started(site)) for site in fleet.sites] == [2, 2, 2]
    started = [name for site in fleet.sites for name in fleet.started(site)]
    assert len(started) == len(set(started))


def test_a_night_starts_nothing_that_is_assigned_to_nobody() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1")])
    plan = fleet.night(fleet.sites[0], fleet.here(fleet.sites[0]))
    assert not plan.decision.starts
    assert plan.decision.choices[0].reason.startswith("a request across sites that is assigned to no site yet: gpuops")


def test_a_site_that_was_not_read_is_named_and_not_chosen() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc", 4)], [Request("ml-1")], dead=frozenset({"muc"}))
    found = fleet.assign()
    assert (sites_of(found), found.unread) == ({"ml-1": "fra"}, {"muc": "it did not answer"})


def begun(name: str, site: str, *, begun: bool = True) -> Assignment:
    return Assignment(name, f"uuid-{site}", site, "a", 1.0, None, begun, 3, EVENING)


def test_what_a_dead_site_may_run_stays_there_and_what_it_never_began_goes_elsewhere() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1"), Request("ml-2")], dead=frozenset({"muc"}))
    fleet.assigned = {"ml-1": begun("ml-1", "muc"), "ml-2": begun("ml-2", "muc", begun=False)}
    found = fleet.assign()
    assert sites_of(found) == {"ml-1": "muc", "ml-2": "fra"}
    assert fates(found) == {"ml-1": "held", "ml-2": "goes"}
    assert reason_of(found, "ml-1") == "muc was not read, and has begun it: it may run there"


@pytest.mark.parametrize("until", [None, EVENING + timedelta(hours=9)])
def test_a_site_that_is_no_target_any_more_holds_what_it_began_until_desktops_are_due(until: datetime | None) -> None:
    """A machine whose configuration file has only some of the sites gives nothing away that runs in another."""
    fleet = Fleet([SiteWorld("fra")], [Request("ml-1")])
    fleet.assigned = {
        "ml-1": replace(begun("ml-1", "old"), until=until),
        "ml-2": replace(begun("ml-2", "old"), until=until),
    }
    found = fleet.assign()
    assert sites_of(found) == {"ml-1": "old", "ml-2": "old"}
    assert reason_of(found, "ml-1").startswith("old is none of these sites, and has begun it")
    assert [each.until for each in found.choices] == [until] * 2
    assert fleet.started(fleet.sites[0]) == []
    assert set(fleet.assigned) == {"ml-1", "ml-2"}, "nobody here asks for ml-2, and it is not forgotten"
    fleet.assigned = {name: replace(each, until=EVENING, at=EVENING) for name, each in fleet.assigned.items()}
    assert sites_of(fleet.assign()) == {"ml-1": "fra"}
    assert set(fleet.assigned) == {"ml-1"}


def test_what_a_site_has_not_begun_that_is_no_target_any_more_goes_elsewhere() -> None:
    fleet = Fleet([SiteWorld("fra")], [Request("ml-1")])
    fleet.assigned = {"ml-1": begun("ml-1", "old", begun=False)}
    assert sites_of(fleet.assign()) == {"ml-1": "fra"}


def test_what_a_site_began_that_its_queue_names_no_more_stays_until_desktops_are_due() -> None:
    """Its policy was edited while it ran, or the site is asked by another one of its policies."""
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1")])
    fleet.assigned = {"ml-1": replace(begun("ml-1", "fra"), until=EVENING + timedelta(hours=9))}
    fra, muc = (fleet.offer(site, {}) for site in fleet.sites)
    fra = replace(fra, requests={})
    found = choose([fra, muc], {}, fleet.assigned, {"ml-1": "fra"}, EVENING)
    assert (sites_of(found), fates(found)) == ({"ml-1": "fra"}, {"ml-1": "held"})
    assert reason_of(found, "ml-1").startswith("fra does not name it in its queue, and has begun it")
    assert changes(found, [fra, muc], fleet.assigned, EVENING) == ((), ())
    later = choose([fra, muc], {}, fleet.assigned, {"ml-1": "fra"}, EVENING + timedelta(hours=9))
    assert sites_of(later) == {"ml-1": "muc"}


def test_a_site_of_another_name_is_still_the_same_vcenter() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc", 3)], [Request("ml-1")])
    fleet.assigned = {"ml-1": replace(begun("ml-1", "fra", begun=False), site="frankfurt")}
    found = fleet.assign()
    assert (sites_of(found), fleet.assigned["ml-1"].site) == ({"ml-1": "fra"}, "fra")


def test_what_ended_tonight_is_not_started_elsewhere_in_the_same_night() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1")])
    fleet.assigned = {"ml-1": begun("ml-1", "fra")}
    fra, muc = (fleet.offer(site, {}) for site in fleet.sites)
    ended = replace(fra.requests["ml-1"], turn=Turn.NOT_NOW, reason="is off again")
    fra = replace(fra, requests={"ml-1": ended})
    found = choose([fra, muc], {}, fleet.assigned, {"ml-1": "fra"}, EVENING)
    assert (sites_of(found), fates(found)) == ({"ml-1": "fra"}, {"ml-1": "held"})
    assert changes(found, [fra, muc], fleet.assigned, EVENING) == ((), ())
    # in the next night it may start anew, and is free to go: its row no longer says that it has begun
    later = fleet.assign()
    assert (sites_of(later), fleet.assigned["ml-1"].begun) == ({"ml-1": "fra"}, False)


def test_where_a_run_is_open_what_it_began_stays() -> None:
    fleet = Fleet([SiteWorld("fra", run_open=True), SiteWorld("muc", 3)], [Request("ml-1"), Request("ml-2")])
    fleet.assigned = {"ml-1": begun("ml-1", "fra"), "ml-2": begun("ml-2", "fra", begun=False)}
    found = fleet.assign()
    assert fates(found) == {"ml-1": "held", "ml-2": "goes"}
    assert reason_of(found, "ml-1") == "a run of this site that may start it is open"


def test_one_that_runs_stays_and_a_second_one_is_warned_of() -> None:
    sites = [SiteWorld("fra", running=frozenset({"ml-1"})), SiteWorld("muc", 3, running=frozenset({"ml-1"}))]
    fleet = Fleet(sites, [Request("ml-1")])
    found = fleet.assign()
    assert (sites_of(found), fates(found)) == ({"ml-1": "fra"}, {"ml-1": "runs"})
    assert found.warnings == ("ml-1 runs in fra, muc: stop all but one",)
    assert fleet.assigned["ml-1"].begun


def test_an_assignment_stays_though_another_site_would_be_better_by_now() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1")])
    fleet.assign()
    fleet.sites[1].hosts = 4
    found = fleet.assign()
    assert sites_of(found) == {"ml-1": "fra"}
    assert reason_of(found, "ml-1") == "stays where it is assigned"


def test_it_moves_where_its_site_cannot_start_it_any_more() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1")])
    fleet.assign()
    fleet.sites[0].lacks = frozenset({"ml-1"})
    assert sites_of(fleet.assign()) == {"ml-1": "muc"}


def test_a_higher_priority_takes_the_place_of_what_has_not_begun() -> None:
    fleet = Fleet([SiteWorld("fra")], [Request("ml-1"), Request("ml-2")])
    assert set(sites_of(fleet.assign()).values()) == {"fra"}
    fleet.requests += [Request("ml-3", priority=5), Request("ml-4", priority=4)]
    assert sites_of(fleet.assign()) == {"ml-3": "fra", "ml-4": "fra", "ml-1": None, "ml-2": None}
    assert sorted(fleet.assigned) == ["ml-3", "ml-4"]


def test_what_a_team_may_have_at_once_counts_over_all_sites() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc"), SiteWorld("ber")],
                  [Request(f"ml-{number}") for number in range(1, 5)], (Team("a", gpus=3),))  # fmt: skip
    found = fleet.assign()
    assert Counter(fates(found).values()) == {"goes": 3, "waits": 1}
    assert reason_of(found, "ml-4") == "team a has 3 of 3 GPUs at once in all sites"


def ran(team: str, hours: float, *, goes_on: bool = False) -> PastNight:
    period = HeldPeriod(EVENING - timedelta(hours=hours), None if goes_on else EVENING)
    vms = (PastVm("vm-9", "uuid-9", "old", Role.ML, (), 1.0, (period,), closed=not goes_on,
                  owner=NotedOwner(str(BY_TEAM), team)),)  # fmt: skip
    return PastNight("2026-11-19", "vc", EVENING, "night", (), vms, (), back_by=EVENING + timedelta(hours=9))


def test_what_runs_in_a_dead_site_counts_as_its_journal_tells() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1"), Request("ml-2")], (Team("a", gpus=2),))
    fleet.sites[1].past = (ran("a", 1, goes_on=True),)
    fleet.dead = frozenset({"muc"})
    found = fleet.assign()
    assert fates(found) == {"ml-1": "goes", "ml-2": "waits"}


def test_what_runs_in_a_dead_site_counts_for_the_owner_whose_job_runs_in_it_now() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1"), Request("ml-2")], (Team("a", gpus=2),))
    night = ran("a", 3, goes_on=True)
    job = JobTime(NotedOwner(str(BY_TEAM), "b"), EVENING - timedelta(hours=1))
    fleet.sites[1].past = (replace(night, vms=(replace(night.vms[0], jobs=(job,)),)),)
    fleet.dead = frozenset({"muc"})
    assert fates(fleet.assign()) == {"ml-1": "goes", "ml-2": "goes"}


def test_of_one_priority_the_team_that_had_less_in_any_site_comes_first() -> None:
    requests = [Request("ml-1", "a"), Request("ml-2", "a"), Request("ml-3", "b"), Request("ml-4", "b")]
    fleet = Fleet([SiteWorld("fra")], requests, (), now=EVENING)
    fleet.sites.append(SiteWorld("muc", past=(ran("a", 30),), lacks=frozenset(each.name for each in requests)))
    found = fleet.assign()
    assert [each.name for each in found.choices] == ["ml-3", "ml-4", "ml-1", "ml-2"]
    assert sites_of(found) == {"ml-3": "fra", "ml-4": "fra", "ml-1": None, "ml-2": None}


def test_gpu_hours_of_a_week_count_over_all_sites() -> None:
    fleet = Fleet([SiteWorld("fra"), SiteWorld("muc")], [Request("ml-1"), Request("ml-2")],
                  (Team("a", gpu_hours=50),))  # fmt: skip
    fleet.sites[1].past = (ran("a", 35),)
    found = fleet.assign()
    assert Counter(fates(found).values()) == {"goes": 1, "waits": 1}
    assert "44 of 50 GPU-hours of 7 days in all sites, and this request 9" in reason_of(found, "ml-2")


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    chance = random.Random(draw(st.integers(0, 2**32)))
    names = ["ber", "fra", "ham", "koe", "muc", "stu"][: chance.randint(2, 6)]
    requests = [
        Request(f"ml-{number}", chance.choice("abc"), chance.choice([HALF, None]) or "nvidia_a40-48c",
                chance.choice([0, 0, 0, 5]), chance.choice([0, 0, 8]))
        for number in range(1, chance.randint(2, 12))
    ]  # fmt: skip
    sites = [
        SiteWorld(name, chance.randint(1, 2), chance.choice([3, 6, 7]), board=chance.choice(["a40", "a40", "l40s"]),
                  run_open=chance.random() < 0.1,
                  lacks=frozenset(each.name for each in requests if chance.random() < 0.2))
        for name in names
    ]  # fmt: skip
    limits = [
        Team(team, chance.choice([1, 2]), chance.choice([None, 1, 2.5]), chance.choice([None, 20])) for team in "abc"
    ]
    fleet = Fleet(sites, requests, chance.choice([None, tuple(limits)]))
    fleet.dead = frozenset(name for name in names if chance.random() < 0.15) - {names[0]}
    for each in requests:
        if chance.random() < 0.3:
            fleet.assigned[each.name] = begun(each.name, chance.choice(names), begun=chance.random() < 0.5)
    return fleet


@settings(max_examples=40, deadline=None)
@given(fleets())
def test_nothing_bad_happens_in_any_fleet(fleet: Fleet) -> None:
    before = dict(fleet.assigned)
    found = fleet.assign()
    assert_sound(fleet, found, before)
    # the choice is stable: asked again, with nothing changed, nothing moves. What waited for its team's limit may go by
    # then: the first look counted others of the team for longer than they run where they went.
    if not found.again:
        assigned = dict(fleet.assigned)
        again = fleet.assign()
        first, second = ({name: each for name, each in sites_of(look).items() if each} for look in (found, again))
        added = second.keys() - first.keys()
        assert added <= found.limited
        assert {name: each for name, each in second.items() if name not in added} == first
        assert {name: (each.site, each.begun) for name, each in fleet.assigned.items() if name not in added} == {
            name: (each.site, each.begun) for name, each in assigned.items()
        }


def assert_sound(fleet: Fleet, found: AcrossSites, before: dict[str, Assignment]) -> None:
    # each request is told once, and goes to one site that can start it
    names = [each.name for each in found.choices]
    assert len(names) == len(set(names))
    for each in found.choices:
        if each.fate is Fate.GOES:
            assert each.site not in fleet.dead and each.name in fleet.assigned
            assert not (before.get(each.name) and before[each.name].begun and before[each.name].site in fleet.dead)
    # each night starts only its own, and together the nights start none twice
    started = [name for site in fleet.sites if site.name not in fleet.dead for name in fleet.started(site)]
    assert len(started) == len(set(started))
    going = {each.name for each in found.choices if each.fate is Fate.GOES}
    # by fair share a night's order is that of what it may start, and the look's that of all that waits: in a few fleets
    # it seats others first, and the request waits at its site (`gpuops help across` says so)
    allowed = found.again or fleet.teams is not None
    assert going <= set(started) or allowed, "what goes to a site is started by its night"
    assert_within_limits(fleet, going)


def assert_within_limits(fleet: Fleet, going: Sequence[str] | set[str]) -> None:
    for team in fleet.teams or ():
        own = [each for each in fleet.requests if each.team == team.name and each.name in going]
        gpus = sum(0.5 if each.profile == HALF else 1.0 for each in own)
        assert team.gpus is None or gpus <= team.gpus + 1e-6
        assert team.gpu_hours is None or gpus * 6 <= team.gpu_hours + 1e-6, "each runs for six hours at the least"


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(fleets())
def test_nothing_bad_happens_in_many_fleets(fleet: Fleet) -> None:
    before = dict(fleet.assigned)
    assert_sound(fleet, fleet.assign(), before)
