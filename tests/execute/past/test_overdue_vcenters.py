"""Every overdue vCenter of a journal is reported, without a connection to any."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal
from gpuops.execute.past.every_vcenter import overdue_vcenters
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import NightVms, RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.night_record import Original, Role
from gpuops.plan.rotation.returns.return_time import Overdue
from gpuops.report.document import as_values
from gpuops.report.nights.rotation_status import status_document
from tests.execute.nights import POLICY, Night
from tests.execute.small_vcenter import SmallVcenter

CLOSED = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
GONE = "vc-gone"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgresql").database())


def taken_elsewhere(state_dir: Path, url: str) -> None:
    """A night of a vCenter that no target has."""
    journal = Journal.open(state_dir, GONE, lambda: CLOSED - timedelta(hours=8), url=url)
    run = journal.begin(RunKind.NIGHT, night="2026-11-20", policy=POLICY.text, policy_digest=POLICY.digest)
    NightVms(journal).save_marked(Original("2026-11-20", Role.DESKTOP, "vm-1", "u", "desk-1", "host-1"))
    journal.end(run)
    journal.close()


def found_in(state_dir: Path, url: str, clock: Callable[[], datetime], only: str | None = None) -> tuple[Overdue, ...]:
    damaged: list[StateDamaged] = []
    overdue = overdue_vcenters(state_dir, url, clock, damaged=damaged.append, only=only)
    assert damaged == []
    return overdue


def test_one_that_no_target_has_any_more(tmp_path: Path, url: str) -> None:
    state_dir = tmp_path / "state"
    assert found_in(state_dir, url, lambda: CLOSED) == ()
    taken_elsewhere(state_dir, url)
    assert found_in(state_dir, url, lambda: CLOSED + timedelta(minutes=29)) == ()
    [overdue] = found_in(state_dir, url, lambda: CLOSED + timedelta(minutes=30))
    assert (overdue.vcenter, overdue.vms, overdue.closed, overdue.last_return) == (GONE, ("desk-1",), CLOSED, None)
    assert found_in(state_dir, url, lambda: CLOSED + timedelta(minutes=30), only=GONE) == (overdue,)
    assert found_in(state_dir, url, lambda: CLOSED + timedelta(minutes=30), only="vc-uuid") == ()
    night = Night(state_dir)
    night.world.now = CLOSED + timedelta(hours=1)
    rotation = status(Site(SmallVcenter(night.world), state_dir, night.world.tick, journal_url=url))
    assert rotation.vms == (), "it is of another vCenter"
    assert [row["vcenter"] for row in as_values(status_document(rotation))["overdue"]] == [GONE]


@pytest.mark.long
def test_a_return_that_tries_is_no_alarm_and_one_that_has_ended_none_at_all(tmp_path: Path, url: str) -> None:
    night = Night(tmp_path / "state")
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick, journal_url=url)

    def overdue_now() -> list[str]:
        return [overdue_night.vcenter for overdue_night in found_in(night.state_dir, url, night.world.tick)]

    assert rotate(RunKind.NIGHT, POLICY, site, apply=True, consent=agreed).exit_code == 0
    [mine] = {away_vm.original.night for away_vm in status(site).away}
    windows = [window.night_of(datetime.fromisoformat(mine).date()) for window in POLICY.windows]
    closes = max(open_window.closes for open_window in windows if open_window is not None)
    night.world.now = closes + timedelta(minutes=31)
    assert overdue_now() == ["vc-uuid"]
    journal = Journal.open(night.state_dir, "vc-uuid", night.world.tick, url=url)
    journal.end(journal.begin(RunKind.DAY, policy=POLICY.text, policy_digest=POLICY.digest))
    assert overdue_now() == [], "a return runs: it reports its own failure"
    journal.end(journal.begin("attach"))
    night.world.now += timedelta(minutes=31)
    assert overdue_now() == ["vc-uuid"], "no other run is a return"
    journal.close()
    assert rotate(RunKind.DAY, POLICY, site, apply=True, consent=agreed).exit_code == 0
    night.world.now += timedelta(minutes=31)
    assert overdue_now() == []


@pytest.mark.long
def test_a_journal_that_was_changed_hides_no_other_vcenter(tmp_path: Path) -> None:
    """Nor does it keep `rotate status` of another one from telling what is away."""
    state_dir = tmp_path / "state"
    taken_elsewhere(state_dir, "")
    with closing(sqlite3.connect(state_dir / "journal.sqlite")) as journal, journal:
        journal.execute("UPDATE journal_heads SET checksum = 'another'")
    night = Night(state_dir)
    night.run(RunKind.NIGHT)
    night.world.now = CLOSED + timedelta(days=400)
    rotation = status(Site(SmallVcenter(night.world), state_dir, night.world.tick))
    assert (rotation.exit_code, [overdue_night.vcenter for overdue_night in rotation.overdue]) == (0, ["vc-uuid"])
    [why] = as_values(status_document(rotation))["overdue_unknown"]
    assert why.startswith(f"vCenter {GONE}: the journal ")
