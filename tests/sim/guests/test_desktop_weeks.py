"""Made-up weeks of desktops: when users are present, their sessions, and what the counters show."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gpuops.errors import PolicyError
from gpuops.model.measurements.measurement import CPU_MHZ, GPU_USE
from gpuops.sim.scenario.build import build
from gpuops.sim.state.desktop_people import DAY_S, ENDS_S, HOUR_S, Office, People, VisitEnding, people
from gpuops.sim.state.vm_state import Power
from tests.desktop_load import MISSING, SAMPLE_S, SHOWN, DesktopWeek, desktop_week

DESKTOPS = 40
every_office = pytest.mark.parametrize("office", list(Office))


def weeks(office: Office, seed: int = 1) -> list[People]:
    return [people(office, seed, number) for number in range(DESKTOPS)]


@pytest.mark.long
@every_office
def test_one_seed_makes_one_week(office: Office) -> None:
    assert people(office, 3, 7) == people(office, 3, 7)
    assert len({people(office, seed, number).visits for seed in (1, 2) for number in range(5)}) == 10
    first_week, second_week = desktop_week(office, 3, 7), desktop_week(office, 3, 7)
    assert first_week.values.keys() == second_week.values.keys()
    assert all((first_week.values[name] == second_week.values[name]).all() for name in first_week.values)


@every_office
def test_each_visit_is_in_a_session_that_ends_as_its_user_left(office: Office) -> None:
    for who in weeks(office):
        assert who.visits == tuple(sorted(who.visits, key=lambda visit: visit.begin))
        assert all(earlier.until <= later.begin for earlier, later in pairwise(who.visits))
        assert all(earlier.until <= later.begin for earlier, later in pairwise(who.sessions))
        for visit in who.visits:
            assert 0 <= visit.begin < visit.until <= ENDS_S
            session = who.session_at(visit.begin)
            assert session is not None
            assert session.disconnected_at(visit.begin) is session.disconnected_at(visit.until - 1) is None
            assert session.until >= visit.until
            if visit.ending is VisitEnding.LOGS_OFF:
                assert session.until == visit.until
            elif visit.ending is VisitEnding.DISCONNECTS and session.until > visit.until:
                following = who.next_visit(visit.until)
                if following is None or following.begin > visit.until:
                    assert session.disconnected_at(visit.until) == visit.until
        assert all(who.present(session.begin) for session in who.sessions), "somebody began each"


@pytest.mark.long
def test_the_offices_differ_in_what_makes_them_hard() -> None:
    def present(office: Office, hour: float) -> int:
        return sum(who.present(day * DAY_S + int(hour * HOUR_S)) for who in weeks(office) for day in range(5))

    def with_session(office: Office, hour: int) -> int:
        return sum(
            who.session_at(day * DAY_S + hour * HOUR_S) is not None for who in weeks(office) for day in (1, 2, 3)
        )

    assert present(Office.OFFICE_HOURS, 10) > 5 * DESKTOPS * 0.6
    assert present(Office.OFFICE_HOURS, 3) == 0
    assert present(Office.NIGHT_OWLS, 23) > 5 * DESKTOPS * 0.1 > present(Office.OFFICE_HOURS, 23)
    assert with_session(Office.ZOMBIES, 4) > 3 * DESKTOPS * 0.7 > 2 * with_session(Office.OFFICE_HOURS, 4)
    assert present(Office.SHIFTS, 3) > 0
    assert min(len(who.visits) for who in weeks(Office.SHIFTS)) > max(len(who.visits) for who in weeks(Office.ZOMBIES))


@pytest.mark.long
def test_counters_show_work_hardly_show_reading_and_are_missing_where_they_would_be() -> None:
    weeks = [desktop_week(office, 1, number) for office in Office for number in range(20)]
    zombies = [week for week in weeks if week.people.office is Office.ZOMBIES]
    assert all(set(week.values) == set(SHOWN) for week in weeks if week not in zombies)
    assert {GPU_USE in week.values for week in zombies} == {True, False}
    missing = [series for week in zombies for series in week.values.values() if (series == MISSING).any()]
    assert missing
    assert not any(
        (series == MISSING).any() for week in weeks if week not in zombies for series in week.values.values()
    )
    office = [week for week in weeks if week.people.office is Office.OFFICE_HOURS]
    cpu_at_work = np.concatenate([cpu[_present(week)] for week in office for cpu in [week.values[CPU_MHZ]]])
    cpu_away = np.concatenate([cpu[~_present(week)] for week in office for cpu in [week.values[CPU_MHZ]]])
    assert np.median(cpu_at_work) > 500 > 3 * np.median(cpu_away), "work shows"
    assert (cpu_at_work < 200).mean() > 0.1, "reading looks like absence"
    assert (cpu_away > 1000).any(), "scans look as if somebody were"


def _present(week: DesktopWeek) -> np.ndarray:
    is_present = np.zeros(ENDS_S // SAMPLE_S, dtype=bool)
    for visit in week.people.visits:
        is_present[visit.begin // SAMPLE_S : -(-visit.until // SAMPLE_S)] = True
    return is_present


@pytest.mark.long
def test_samples_are_those_that_a_host_would_tell() -> None:
    week = desktop_week(Office.SHIFTS, 1, 1)
    ends = week.sample_ends(1_000_000)
    assert (ends[0], ends[-1]) == (1_000_000 + SAMPLE_S, 1_000_000 + ENDS_S)
    assert {len(values) for values in week.values.values()} == {len(ends)}
    assert all(int(values.max()) <= 10_000 for name, values in week.values.items() if name == GPU_USE)
    assert asdict(week.people)["office"] == "shifts"


@pytest.mark.long
def test_desktops_of_a_scenario_were_used_until_it_began() -> None:
    world = build("vdi")
    now = world.clock.now()
    running = [vm for vm in world.by_type("VirtualMachine") if vm.state.power is Power.ON]
    desktops = [vm for vm in running if vm.state.past is not None and vm.state.cpu_usage_mhz < 500]

    def used_at(moment: datetime) -> int:
        values = [world.counters(vm, moment) for vm in desktops]
        return sum(counters[CPU_MHZ, ""] > 500 and counters[GPU_USE, ""] > 0 for counters in values)

    assert len(desktops) > 90
    assert used_at(now - timedelta(hours=8)) > used_at(now - timedelta(hours=5.5)) > 0, "some are at lunch"
    assert used_at(now - timedelta(minutes=1)) > 0 == used_at(now), "from then on it is as declared"


@pytest.mark.long
def test_an_office_that_is_none_is_refused(tmp_path: Path) -> None:
    text = resources.files("gpuops.sim.scenarios").joinpath("vdi.yaml").read_text(encoding="utf-8")
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace("office-hours", "x"), encoding="utf-8")
    with pytest.raises(PolicyError, match=r"vms\.0\.office"):
        build(str(path))
