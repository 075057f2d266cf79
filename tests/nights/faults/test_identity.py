"""Nights in which a login, a datastore, a host or a VM is not what it was: drawn in later seeds alone, and nothing is
lost in them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.nights.faults import schedule
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import FIRST_OF_IDENTITY, OF_IDENTITY, of_identity, schedule_of
from tests.nights.judging.checkers import violations
from tests.nights.playing.night import Nightly
from tests.nights.playing.played import Played
from tests.sample import every_nth

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
