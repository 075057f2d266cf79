"""What `gpuops history` makes of a journal, beside the power states that the VMs of its nights really had."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged, StepFailed, UsageError
from gpuops.execute.journal import FILE_NAME, IntentState, Journal
from gpuops.execute.past.every_vcenter import overdue_vcenters
from gpuops.execute.past.past_runs import history, past_night
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import NightVms, RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.history import EventKind, GivenUp, PastNight, PastOutcome, Thing
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.returns.return_time import Overdue
from gpuops.report.document import as_values
from gpuops.report.nights.rotation_status_view import status_document
from tests.execute.nights import POLICY, Night
from tests.execute.power_log import PowerLog
from tests.execute.small_vcenter import SmallVcenter

HOURS = 8
NIGHT = "2026-11-20"
ON, OFF, SUSPENDED = PowerState.ON, PowerState.OFF, PowerState.SUSPENDED


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path / "state")


@pytest.fixture
def log(night: Night, monkeypatch: pytest.MonkeyPatch) -> PowerLog:
    return PowerLog(night.world, monkeypatch)


def sleep(night: Night) -> None:
    night.world.now += timedelta(hours=HOURS)


def the_night(night: Night) -> PastNight:
    [past_night] = history(night.state_dir, kind=EventKind.NIGHT).nights
    return past_night


def check_figures(log: PowerLog, past_night: PastNight) -> None:
    assert past_night.harvested.exact == pytest.approx(log.gpu_hours("ml", ON), abs=0.1)
    assert past_night.given.exact == pytest.approx(log.gpu_hours("desktop", SUSPENDED), abs=0.1)
    assert past_night.share is not None
    assert 0 < past_night.share <= 1
    suspended = log.suspended()
    assert {vm.ref for vm in past_night.desktops} == suspended
    assert past_night.returned == len(suspended) > 0


@pytest.mark.long
def test_a_night_as_the_power_states_of_its_vms_show_it(night: Night, log: PowerLog) -> None:
    night.run(RunKind.NIGHT)
    open_night = the_night(night)
    assert (open_night.outcome, open_night.returned) == (PastOutcome.OPEN, 0)
    assert open_night.harvested.exact is None
    assert open_night.share is None
    sleep(night)
    night.run(RunKind.DAY)
    past_night = the_night(night)
    assert (past_night.id, past_night.policy, past_night.outcome, past_night.incidents) == (
        NIGHT,
        "small",
        PastOutcome.DONE,
        (),
    )
    assert [run.kind for run in past_night.runs] == ["rotate night", "rotate day"]
    assert all(run.by.user and run.by.machine and run.ends and not run.cut_off for run in past_night.runs)
    check_figures(log, past_night)


@pytest.mark.long
@pytest.mark.parametrize("kill_at", range(2, 60, 7))
def test_a_night_that_was_killed_and_resumed_has_the_same_figures(night: Night, log: PowerLog, kill_at: int) -> None:
    if not night.killed(RunKind.NIGHT, kill_at):
        pytest.skip("it had ended before")
    night.resume()
    sleep(night)
    night.run(RunKind.DAY)
    past_nights = history(night.state_dir).nights
    if not past_nights or not past_nights[0].desktops:
        assert kill_at < 12, "nothing was begun yet"
        return
    check_figures(log, past_nights[0])
    if [run.kind for run in past_nights[0].runs].count("rotate night") == 2:
        assert "cut off" in {incident.what for incident in past_nights[0].incidents}
        assert past_nights[0].runs[0].cut_off


@pytest.mark.long
def test_a_morning_that_was_killed_is_one_night_with_both_mornings(night: Night, log: PowerLog) -> None:
    night.run(RunKind.NIGHT)
    sleep(night)
    assert night.killed(RunKind.DAY, 30)
    assert the_night(night).outcome is PastOutcome.OPEN
    night.resume()
    past_night = the_night(night)
    assert [(run.kind, run.cut_off) for run in past_night.runs] == [
        ("rotate night", False), ("rotate day", True), ("rotate day", False),
    ]  # fmt: skip
    assert past_night.outcome is PastOutcome.DONE
    check_figures(log, past_night)


@pytest.mark.long
def test_a_desktop_that_does_not_come_back_is_told_with_the_reason(night: Night) -> None:
    night.run(RunKind.NIGHT)
    sleep(night)
    desktop = the_night(night).desktops[0]
    night.world.failing[desktop.ref] = StepFailed("the disk is full")
    night.run(RunKind.DAY)
    past_night = the_night(night)
    assert (past_night.outcome, past_night.returned) == (PastOutcome.OPEN, len(past_night.desktops) - 1)
    assert {(incident.about, incident.what) for incident in past_night.incidents} == {(desktop.name, "resume failed")}
    assert "the disk is full" in past_night.incidents[0].reason
    assert past_night.available.exact is None, "it is suspended still"


def an_original(role: Role, vm: str, *profiles: str) -> Original:
    return Original(NIGHT, role, vm, f"uuid-{vm}", vm, "host-1", profiles)


class Written:
    """A journal written by its own calls, with a clock to set."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.now = datetime(2026, 11, 20, 20, tzinfo=UTC)
        journal.clock = lambda: self.now
        self.seen = Inventory("vc-1", "8.0.3.0", self.now, {}, {}, {}, {})

    def night(self, *originals: Original, **free: float) -> None:
        run = self.journal.begin("rotate night", night=NIGHT, free_gpus=free)
        NightVms(self.journal).save(originals, run)
        for original in originals:
            step = PowerOnVm(original.vm) if original.role is Role.ML else SuspendVm(original.vm)
            self.journal.record_outcome(self.journal.intend(run, step, self.seen), IntentState.DONE)
        self.journal.end(run)

    def day(self, *originals: Original) -> None:
        run = self.journal.begin("rotate day")
        for original in originals:
            step = ShutDownGuest(original.vm) if original.role is Role.ML else ResumeVm(original.vm)
            self.journal.record_outcome(self.journal.intend(run, step, self.seen), IntentState.DONE)
        self.closed(*originals)
        self.journal.end(run)

    def closed(self, *originals: Original) -> None:
        for original in originals:
            NightVms(self.journal).record_return(original)


DESKTOP, ML = an_original(Role.DESKTOP, "vdi-1", "nvidia_a40-24q"), an_original(Role.ML, "ml-1", "nvidia_a40-48c")


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    with closing(Journal.open(tmp_path, "vc-1", lambda: datetime.now(UTC))) as journal:  # noqa: TID251
        yield Written(journal)


def test_gpu_hours_are_gpus_times_hours_and_the_share_is_of_what_was_free_too(written: Written, tmp_path: Path) -> None:
    written.night(DESKTOP, ML, **{"host-1": 0.75})
    written.now += timedelta(hours=10)
    written.day(DESKTOP, ML)
    [night] = history(tmp_path).nights
    assert (night.harvested.exact, night.given.exact, night.available.exact) == (10.0, 5.0, 12.5)
    assert night.share == 0.8


@pytest.mark.long
def test_an_ml_vm_that_stopped_by_itself_has_bounds_and_no_figure(written: Written, tmp_path: Path) -> None:
    written.night(DESKTOP, ML, **{"host-1": 0.5})
    written.now += timedelta(hours=10)
    written.day(DESKTOP)
    written.closed(ML)
    [night] = history(tmp_path).nights
    assert night.outcome is PastOutcome.DONE
    assert (night.harvested.exact, night.harvested.at_least, night.harvested.at_most) == (None, 0.0, 10.0)
    assert night.share is None


@pytest.mark.long
def test_what_an_older_gpuops_wrote_has_no_share_and_nobody_who_ran_it(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Journal._append

    def older(self: Journal, drafted: object) -> object:
        def without(state: object) -> object:
            drafts = drafted(state)  # type: ignore[operator]
            return [
                (run, kind, {key: value for key, value in body.items() if key not in ("by", "free_gpus", "cut_off")})
                for run, kind, body in drafts
            ]

        return append(self, without)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "_append", older)
    written.night(DESKTOP, ML)
    written.now += timedelta(hours=1)
    written.day(DESKTOP, ML)
    [night] = history(tmp_path).nights
    assert (night.harvested.exact, night.given.exact) == (1.0, 0.5)
    assert (night.available.exact, night.share) == (None, None)
    assert {str(run.by) for run in night.runs} == {"unknown"}


@pytest.mark.long
def test_a_profile_that_the_catalogue_does_not_know_is_no_zero(written: Written, tmp_path: Path) -> None:
    strange = an_original(Role.ML, "ml-2", "nvidia_x9000-1c")
    written.night(DESKTOP, ML, strange)
    written.now += timedelta(hours=1)
    written.day(DESKTOP, ML, strange)
    [night] = history(tmp_path).nights
    assert (night.harvested.exact, night.harvested.at_least) == (None, 1.0)


@pytest.mark.long
def test_what_a_person_gave_up_is_not_back(written: Written, tmp_path: Path) -> None:
    written.night(DESKTOP)
    given_up = GivenUp(Thing.VM, "vdi-1", "uuid-vdi-1", "vdi-1", f"night {NIGHT}", written.now)
    written.journal.give_up([given_up])
    [night] = history(tmp_path).nights
    assert (night.outcome, night.returned) == (PastOutcome.GIVEN_UP, 0)
    assert [incident.what for incident in night.incidents] == ["given up"]
    assert night.available.exact is None
    written.journal.record_back([given_up])
    [night] = history(tmp_path).nights
    assert (night.outcome, night.returned) == (PastOutcome.DONE, 1)


@pytest.mark.long
def test_a_return_from_markers_alone_is_listed_and_its_hours_are_unknown(written: Written, tmp_path: Path) -> None:
    written.day(DESKTOP, ML)
    [night] = history(tmp_path).nights
    assert (night.by_markers, len(night.desktops), night.returned, len(night.ml)) == (True, 1, 1, 1)
    assert (night.harvested.exact, night.given.exact, night.share) == (None, None, None)


@pytest.mark.long
def test_changes_are_told_with_what_they_were_of_and_how_they_ended(written: Written, tmp_path: Path) -> None:
    run = written.journal.begin("attach")
    op_id = written.journal.intend(run, PowerOnVm("vm-7"), written.seen)
    written.journal.record_outcome(op_id, IntentState.FAILED, "no room")
    written.journal.end(run)
    written.now += timedelta(days=1)
    written.journal.begin("setscheduler")
    newest, oldest = history(tmp_path).changes
    assert (newest.verb, newest.outcome) == ("scheduler set", PastOutcome.OPEN)
    assert (oldest.verb, oldest.subjects, oldest.outcome) == ("attach", ("vm-7",), PastOutcome.PARTLY)
    assert [(incident.what, incident.reason) for incident in oldest.incidents] == [("start failed", "no room")]


@pytest.mark.long
def test_what_is_asked_for_is_what_comes(written: Written, tmp_path: Path) -> None:
    written.night(DESKTOP)
    written.now += timedelta(days=3)
    written.journal.end(written.journal.begin("attach"))
    everything = history(tmp_path)
    assert (len(everything.nights), len(everything.changes), everything.left_off) == (1, 1, 0)
    assert not history(tmp_path, since=written.now - timedelta(days=1)).nights
    assert not history(tmp_path, kind=EventKind.NIGHT).changes
    limited = history(tmp_path, limit=1)
    assert (len(limited.nights), len(limited.changes), limited.left_off) == (0, 1, 1)


@pytest.mark.long
def test_the_same_from_every_kind_of_journal(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgresql").database()
    with closing(Journal.open(tmp_path, "vc-1", lambda: datetime.now(UTC), url=url)) as journal:  # noqa: TID251
        written = Written(journal)
        written.night(DESKTOP, ML, **{"host-1": 0.5})
        written.now += timedelta(hours=2)
        written.day(DESKTOP, ML)
    [night] = past_night(tmp_path, NIGHT, url).nights
    assert (night.harvested.exact, night.share) == (2.0, 1.0)
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.long
def test_nothing_is_made_where_there_is_no_journal(tmp_path: Path) -> None:
    past = history(tmp_path / "none")
    assert (past.nights, past.changes) == ((), ())
    with pytest.raises(UsageError) as unknown:
        past_night(tmp_path / "none", NIGHT)
    assert unknown.value.hint == "gpuops history lists the nights"
    assert not (tmp_path / "none").exists()


@pytest.mark.long
def test_a_journal_that_somebody_changed_gives_no_figures(written: Written, tmp_path: Path) -> None:
    import sqlite3

    written.night(DESKTOP)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database, database:
        database.execute("UPDATE journal SET at = '2026-11-20T22:00:00+00:00' WHERE seq = 3")
    with pytest.raises(StateDamaged, match="changed by a program other than gpuops: record 3"):
        history(tmp_path)


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
