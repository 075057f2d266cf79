"""When the evening's runs of a night begin, and what befalls many of its desktops, or the identity of what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from fnmatch import fnmatchcase

import pytest

from gpuops.execute.runs import RunKind
from gpuops.model.nights.rotation_policy import Policy
from gpuops.sim.fault_injection.rule import rules_of
from tests.nights.faults import schedule
from tests.nights.faults.cron import policies_in_the_morning
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import (
    FIRST_OF_IDENTITY,
    OF_IDENTITY,
    ONE_IN,
    REVERTED,
    epidemics_of,
    of_identity,
    schedule_of,
    suspended_before,
)
from tests.nights.judging.checkers import violations
from tests.nights.judging.doings import START, SUSPEND, effects
from tests.nights.playing.night import Nightly, play
from tests.nights.playing.played import Played
from tests.nights.truths.reports import replaced_states
from tests.nights.world.worlds import STRICT, site_of
from tests.sample import every_nth

EDITED_SEEDS = range(0, 2000, 2)


def edits(edited: Policy, policy: Policy) -> int:
    """How many things the file says in another way."""
    return sum(getattr(edited, field.name) != getattr(policy, field.name) for field in fields(Policy))


def has_several_edits(seed: int) -> bool:
    policy = site_of(seed).policy
    return all(edits(edited, policy) >= 2 for edited in policies_in_the_morning(seed, policy))


@pytest.mark.long
def test_one_night_in_twenty_has_several_edits_at_once() -> None:
    mixed_seeds = [seed for seed in EDITED_SEEDS[:400] if has_several_edits(seed)]
    assert len(EDITED_SEEDS[:400]) / 40 < len(mixed_seeds) < len(EDITED_SEEDS[:400]) / 8
    policies = [policies_in_the_morning(seed, site_of(seed).policy) for seed in mixed_seeds]
    assert any(len(policy) > 1 for policy in policies), "and other ones between two returns"
    assert any(edited_policy.marker != "gpuops.rotation" for several in policies for edited_policy in several)


@pytest.mark.long
def test_they_keep_nobody_away() -> None:
    returned = 0
    for seed in [seed for seed in EDITED_SEEDS[:400] if has_several_edits(seed)][:8]:
        night = play(seed, ())
        assert violations(night) == []
        returned += len({entry.moid for entry in effects(night, SUSPEND)} & {e.moid for e in effects(night, START)})
    assert returned


@pytest.mark.long
def test_desktops_are_renamed_out_of_the_pattern_and_come_back() -> None:
    strict = [seed for seed in EDITED_SEEDS if _pattern(seed) == "desktop-[0-9][0-9][0-9]"]
    assert len(EDITED_SEEDS) / STRICT / 2 < len(strict) < len(EDITED_SEEDS) / STRICT * 2
    back = 0
    for seed in strict[:8]:
        renamed = [rules_of("V6", {"target": f"desktop-{number:03}", "at_s": 4 * 3600.0}) for number in range(1, 13)]
        night = play(seed, [Event("V6", rules) for rules in renamed])
        assert violations(night) == []
        started = [entry for entry in effects(night, START) if entry.name.startswith("desktop-")]
        back += sum(not fnmatchcase(entry.name, _pattern(seed)) for entry in started)
    assert back > 10


def _pattern(seed: int) -> str:
    return site_of(seed).policy.pools[0].select.name or "*"


SEEDS = range(0, 3000, 2)


SUSPENDED_BEFORE = [seed for seed in SEEDS if suspended_before(seed, ["desktop-001"])]


def seeds_with(fault: str) -> list[int]:
    return [seed for seed in SEEDS if any(event.fault == fault for event in epidemics_of(seed, ["desktop-001"], []))]


def nights_of(seeds: Iterable[int], number: int) -> Iterator[Played]:
    """The first of these nights in worlds that have room for what befalls them."""
    large = (seed for seed in seeds if site_of(seed).size.desktops >= 8)
    return (play(seed) for seed, _ in zip(large, range(number), strict=False))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["V11"])
def test_it_befalls_its_share_of_nights(fault: str) -> None:
    assert len(SEEDS) / ONE_IN / 2 < len(seeds_with(fault)) < len(SEEDS) / ONE_IN * 2


@pytest.mark.long
def test_snapshots_are_reverted_also_of_desktops_that_are_away() -> None:
    kinds, powers = Counter[str](), Counter[tuple[str, str]]()
    for night in nights_of((seed for seed in seeds_with("V11") if seed not in SUSPENDED_BEFORE), 16):
        assert violations(night) == []
        kinds.update(rule.happening for event in night.events if event.fault == "V11" for rule in event.rules)
        suspended_vms = {entry.moid for entry in effects(night, SUSPEND)}
        for change in night.world.ledger:
            if change.method == "RevertToSnapshot_Task" and change.moid in suspended_vms and "power" in change.after:
                powers[change.before["power"], change.after["power"]] += 1
    assert set(kinds) == set(REVERTED)
    assert powers["suspended", "poweredOff"]
    assert powers["suspended", "poweredOn"]


@pytest.mark.long
def test_desktops_that_are_away_are_reverted_to_another_suspended_state() -> None:
    replaced_count = 0
    for night in nights_of(SUSPENDED_BEFORE, 8):
        assert violations(night) == []
        replaced_count += len(list(replaced_states(night)))
    assert replaced_count > 5, "they come back in that state"


@pytest.mark.long
@pytest.mark.parametrize("point", range(6, 120, 16))
def test_a_return_that_is_killed_leaves_nobody_of_them_unnamed(point: int) -> None:
    seed = 594
    reverts = [event for event in play(seed).events if event.fault == "V11"]
    night = Nightly(seed, [*reverts, Event("K1", point=point, target=RunKind.DAY)]).play()
    assert violations(night) == []
    assert len(list(replaced_states(night))) > 3


VMS, HOSTS = ("desktop-001", "desktop-002", "ml-01"), ("esx-01", "esx-02")


STRUCK = {"N9": 30_000, "C8": 30_000, "C9": 30_002, "V14": 30_016, "K13": 30_000}
"""Small worlds in which desktops are taken."""


def test_later_nights_draw_each_of_them_and_recorded_ones_none() -> None:
    later = range(FIRST_OF_IDENTITY, FIRST_OF_IDENTITY + 600)
    drawn = Counter(fault for seed in later for fault in {event.fault for event in of_identity(seed, VMS, HOSTS)})
    assert set(drawn) == set(OF_IDENTITY)
    assert all(count > 5 for count in drawn.values())
    recorded = (
        event for seed in range(0, FIRST_OF_IDENTITY, 40) for event in schedule_of(seed, VMS[:2], VMS[2:], HOSTS)
    )
    assert not {event.fault for event in recorded} & set(OF_IDENTITY)


def night_of(seed: int, fault: str, monkeypatch: pytest.MonkeyPatch, *, calm: bool) -> Played:
    """The night of a seed with this fault for certain, and with its own trouble unless it is `calm`."""
    names = [vm.name for vm in Nightly(seed, ()).world.by_type("VirtualMachine")]
    desktops, ml = ([name for name in names if name.startswith(kind)] for kind in ("desktop-", "ml-"))
    hosts = [host.name for host in Nightly(seed, ()).world.by_type("HostSystem")]
    monkeypatch.setattr(schedule, "OF_IDENTITY", (fault,))
    own_events: list[Event] = [] if calm else list(schedule_of(seed, desktops, ml, hosts))
    events = [event for event in own_events if event.fault not in OF_IDENTITY]
    return Nightly(seed, [*events, *of_identity(seed, [*desktops, *ml], hosts, one_in=1)]).play()


@pytest.mark.parametrize("fault", OF_IDENTITY)
def test_a_night_with_one_of_them_loses_nothing(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    night = night_of(STRUCK[fault], fault, monkeypatch, calm=True)
    assert night.struck[fault] > 0
    assert violations(night) == []


@pytest.mark.long
@pytest.mark.parametrize("fault", OF_IDENTITY)
def test_nights_with_one_of_them_among_other_trouble_lose_nothing(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in every_nth(range(30_000, 30_240, 2), 8):
        assert violations(night_of(seed, fault, monkeypatch, calm=False)) == [], f"seed {seed}"


def test_what_another_login_of_a_killed_night_started_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    night = night_of(30_092, "K13", monkeypatch, calm=False)
    assert violations(night) == []


def test_a_clone_that_runs_with_the_marker_of_the_night_is_named_and_left_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    night = night_of(30_016, "V14", monkeypatch, calm=True)
    assert night.last is not None and night.last.exit_code == 4
    [clone] = [vm for vm in night.world.by_type("VirtualMachine") if vm.name == "ml-04-copy"]
    assert clone.state.power == "poweredOn"
    assert "ml-04-copy" in {unmet.subject for unmet in night.last.plan.unmet}
