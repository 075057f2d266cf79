"""Two machines on one journal in PostgreSQL: what one began, the other finishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.execute.journal.journal_reads import BegunSince
from gpuops.execute.journal.stores import SqlStore
from gpuops.execute.rotation.rotation import resume, rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from tests.execute.journal.postgres import PASSWORD, Server
from tests.execute.nights import POLICY, Night
from tests.execute.small_vcenter import Killed, SmallVcenter


class Machine:
    """A state directory of its own; the world and the database are shared."""

    def __init__(self, name: str, night: Night, url: str) -> None:
        self._state_dir, self._night, self._url = night.state_dir.parent / name, night, url

    def site(self, kill_at: int = 0) -> Site:
        points = iter(range(1, 10**6))

        def point(name: str) -> None:
            if next(points) == kill_at:
                raise Killed(name)

        vcenter = SmallVcenter(self._night.world, point)
        return Site(vcenter, self._state_dir, self._night.world.tick, journal_url=self._url)

    def run(self, kind: RunKind, *, kill_at: int = 0) -> Report:
        return rotate(kind, POLICY if kind is RunKind.NIGHT else None, self.site(kill_at), apply=True, consent=agreed)


@pytest.mark.long
@pytest.mark.parametrize("kill_at", [1, 2, 9, 10, 14, 17, 20])
def test_what_one_machine_began_the_other_finishes(postgresql: Server, tmp_path: Path, kill_at: int) -> None:
    night = Night(tmp_path / "state")
    url = postgresql.database()
    lost, other_machine = Machine("lost", night, url), Machine("other", night, url)
    with pytest.raises(Killed):
        lost.run(RunKind.NIGHT, kill_at=kill_at)
    assert resume(other_machine.site(), apply=True, consent=agreed).exit_code == 0
    for ref in night.world.vms:  # by the journal alone
        night.world.set(ref, attributes={})
    assert other_machine.run(RunKind.DAY).exit_code == 0
    assert {power for name, power in night.powers().items() if "desktop" in name} == {PowerState.ON}
    assert night.powers()["ml-01"] is PowerState.OFF
    stored_bytes = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert PASSWORD.encode() not in stored_bytes


@pytest.mark.long
def test_a_server_that_goes_away_in_the_morning_keeps_no_desktop_from_coming_back(
    postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Night(tmp_path / "state")
    machine = Machine("one", night, postgresql.database())
    machine.run(RunKind.NIGHT)
    real = SqlStore.append
    appends = iter(range(10**6))

    def cut_off(store: SqlStore, records: object) -> None:
        if next(appends) == 3:
            postgresql.cut_off()
        real(store, records)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlStore, "append", cut_off)
    report = machine.run(RunKind.DAY)
    assert (report.exit_code, report.journal_lost) == (7, True)
    assert PASSWORD not in report.plan.warnings[-1]
    assert {power for name, power in night.powers().items() if "desktop" in name} == {PowerState.ON}
    assert night.markers() == set()


@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_a_run_that_was_stopped_between_its_look_and_its_first_line_does_not_begin(
    postgresql: Server, tmp_path: Path, kind: RunKind
) -> None:
    """Meanwhile the other machine played the whole night, or its return, and is done. A return looks anew."""
    night = Night(tmp_path / "state")
    url = postgresql.database()
    stopped, other_machine = Machine("stopped", night, url), Machine("other", night, url)
    if kind is RunKind.DAY:
        assert other_machine.run(RunKind.NIGHT).exit_code == 0
    effects: list[int] = []

    def consent(_report: Report) -> None:
        if not effects:
            effects.append(0)
            assert other_machine.run(kind).exit_code == 0
            effects[0] = len(night.world.requests)

    def late() -> Report:
        return rotate(kind, POLICY if kind is RunKind.NIGHT else None, stopped.site(), apply=True, consent=consent)

    if kind is RunKind.NIGHT:
        with pytest.raises(BegunSince, match="has begun on this vCenter since this one read it"):
            late()
    else:
        assert late().exit_code == 0
    assert len(night.world.requests) == effects[0], "nothing was sent twice"
