"""Real runners on a real PostgreSQL play nights and mornings of vCenters, and are killed and stopped on the way."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.execute.journal.postgres import Server
from tests.harness.fleet import EVENING, MORNING, Fleet, Site, fleet
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # real heartbeats
TAKEN_OVER_S = 90.0
"""Beside other tests on the same cores; `make fleet` holds it to 30 s."""
NIGHT_S = 150.0
AWAY, ON = "SuspendVM_Task", "PowerOnVM_Task"


@pytest.fixture
def pair(postgresql: Server, tmp_path: Path) -> Iterator[Fleet]:
    """Two vCenters, and the tables of the queue."""
    with fleet(tmp_path, postgresql.database(), 2) as new_fleet:
        assert new_fleet.command("runner", "init", at=EVENING).returncode == 0
        yield new_fleet
        for site in new_fleet.sites:
            assert site.client.bugs() == []


def desktops_back(site: Site) -> bool:
    """Whether each desktop that was suspended was resumed as often."""
    suspends, on = Counter(site.done(AWAY)), Counter(site.done(ON))
    return bool(suspends) and all(on[vm] >= count for vm, count in suspends.items())


def ml_started(site: Site) -> bool:
    return bool(set(site.done(ON)) - set(site.done(AWAY)))


def once(site: Site) -> None:
    """Nothing of a night was done twice: each desktop went away once, and came back once."""
    for method in (AWAY, ON):
        twice = {vm: count for vm, count in Counter(site.done(method)).items() if count > 1}
        assert not twice, f"{site.name}: {method} {twice}"


@pytest.mark.long
def test_nights_and_mornings_of_two_vcenters(pair: Fleet) -> None:
    evening = pair.runner(EVENING)
    wait_until(lambda: all(ml_started(site) for site in pair.sites), NIGHT_S)
    assert evening.end() == 0
    morning = pair.runner(MORNING)
    wait_until(lambda: all(desktops_back(site) for site in pair.sites), NIGHT_S)
    assert morning.end() == 0
    for site in pair.sites:
        once(site)
    completed = pair.command("rotate", "status", "--vcenter", "site-0", at=MORNING)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.long
def test_what_a_killed_runner_had_another_takes_over(pair: Fleet) -> None:
    """Both vCenters' nights are under way when it dies, with all that it plays."""
    first = pair.runner(EVENING)
    wait_until(lambda: any(site.done(AWAY) for site in pair.sites), NIGHT_S)
    second = pair.runner(EVENING)
    first.signal(signal.SIGKILL)
    died = time.monotonic()
    wait_until(lambda: "offered again" in second.said, TAKEN_OVER_S)
    assert time.monotonic() - died < TAKEN_OVER_S
    wait_until(lambda: all(ml_started(site) for site in pair.sites), NIGHT_S)
    assert second.end() == 0
    third = pair.runner(MORNING)
    wait_until(lambda: all(desktops_back(site) for site in pair.sites), NIGHT_S)
    assert third.end() == 0
    for site in pair.sites:
        once(site)


@pytest.mark.long
def test_a_runner_that_wakes_finds_its_turns_gone(pair: Fleet) -> None:
    """It was stopped in the middle of a night, and another one has taken it over since."""
    first = pair.runner(EVENING)
    wait_until(lambda: any(site.done(AWAY) for site in pair.sites), NIGHT_S)
    first.signal(signal.SIGSTOP)
    second = pair.runner(EVENING)
    wait_until(lambda: "offered again" in second.said, TAKEN_OVER_S + 10)
    wait_until(lambda: second.said.count("rotate night:") == len(pair.sites), NIGHT_S)
    effects = [len(site.client.ledger()) for site in pair.sites]
    first.signal(signal.SIGCONT)
    wait_until(lambda: not first.plays(), NIGHT_S)
    late = [len(site.client.ledger()) - before for site, before in zip(pair.sites, effects, strict=True)]
    assert max(late) <= 1, "at most the request that was past its check"
    for runner in (first, second):
        assert runner.end() == 0
    for site in pair.sites:
        once(site)


@pytest.mark.long
def test_a_runner_that_is_told_to_end_hands_over(pair: Fleet) -> None:
    first = pair.runner(EVENING)
    wait_until(lambda: any(site.done(AWAY) for site in pair.sites), NIGHT_S)
    second = pair.runner(EVENING)
    assert first.end() == 0
    wait_until(lambda: all(ml_started(site) for site in pair.sites), NIGHT_S)
    assert "offered again" not in second.said, "no runner was taken for dead"
    assert second.end() == 0
    for site in pair.sites:
        once(site)


@pytest.mark.long
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_target_that_is_taken_out_in_its_night_is_returned(pair: Fleet, goes_on: bool) -> None:
    """By another machine's runner in the morning: the common database has what the file said of it. And by one that is
    started anew where it was, where the file is edited while no runner goes on, and the policy taken away with it."""
    evening = pair.runner(EVENING)
    wait_until(lambda: all(ml_started(site) for site in pair.sites), NIGHT_S)
    removed_site = pair.sites.pop()
    if not goes_on:
        assert evening.end() == 0
        removed_site.policy.unlink()
    pair.write_configuration()
    if goes_on:
        wait_until(lambda: f"{removed_site.name} is no longer a target" in evening.said, NIGHT_S)
        assert evening.end() == 0
        shutil.rmtree(pair.folder / "machine-1")
    else:
        (pair.folder / "machine-2").mkdir(mode=0o700)
        (pair.folder / "machine-1" / "leaving").rename(pair.folder / "machine-2" / "leaving")
    morning = pair.runner(MORNING)
    pair.sites.append(removed_site)
    wait_until(lambda: all(desktops_back(site) for site in pair.sites), NIGHT_S)
    wait_until(lambda: f"{removed_site.name}: all desktops are back" in morning.said, NIGHT_S)
    assert morning.end() == 0
    assert list((pair.folder / "machine-2" / "leaving").glob("*.toml")) == []
    for site in pair.sites:
        once(site)


@pytest.mark.long
def test_wrong_input(pair: Fleet) -> None:
    policy = str(pair.sites[0].policy)
    completed = pair.command("rotate", "night", "--fleet", "--policy", policy, at=EVENING)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert "--fleet asks for a night on one vCenter" in completed.stderr
    text = f"[fleet]\nurl = '{pair.bare_url}'\n[targets.prod]\nhost = 'vc.example.com'\n"
    pair.configuration.write_text(text, encoding="utf-8")
    nothing = pair.command("runner", "run", at=EVENING)
    assert nothing.returncode == 2
    assert "no policy is configured for any target" in nothing.stderr
