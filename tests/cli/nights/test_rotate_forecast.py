"""What is expected in use, at the command line: around the morning of a night, and at a look of a watch."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.observe.store_reads import FILE_NAME
from tests.cli.conftest import Lab
from tests.measured_use import measure

NIGHTLY: Final = str(files("gpuops.sim") / "scenarios" / "lab-nightly-policy.yaml")
BERLIN: Final = ZoneInfo("Europe/Berlin")
EVENING: Final = ("rotate", "plan", "--policy", NIGHTLY, "--at", "2026-11-02 22:00")
DESKTOPS: Final = 12

Golden = Callable[[str, str], None]
Office = Callable[[datetime], int]


def office(moment: datetime) -> int:
    """By clocks in Berlin: two until six, eight until seven, then all of them until five."""
    hour = moment.astimezone(BERLIN).hour
    return DESKTOPS if 7 <= hour < 17 else 8 if hour == 6 else 2


def later(moment: datetime) -> int:
    """All of them from eight on."""
    return DESKTOPS if 8 <= moment.astimezone(BERLIN).hour < 17 else 0


def store_weeks(lab: Lab, in_use: Office, days: int = 14) -> None:
    """So many days of the desktops of the lab, until six in the evening, when its scenario begins (19:00 in Berlin)."""
    world = lab.server.world
    refs = sorted(machine.moid for machine in world.by_type("VirtualMachine") if machine.state.name.startswith("vdi-"))
    now = world.clock.now().replace(minute=0, second=0, microsecond=0)
    default_state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    measure(default_state_dir(), plan_night(lab)["vcenter"], refs, now - timedelta(days=days), now, in_use)


def plan_night(lab: Lab) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(lab.run(*EVENING, "--output", "json").stdout)
    return answer


def test_a_plan_shows_the_morning_with_its_error_and_warns_of_those_who_come_before_their_desktops(
    lab: Lab, golden: Golden
) -> None:
    store_weeks(lab, office)
    answer = plan_night(lab)
    [pool] = answer["forecasts"]
    by_hour = {slot["begin"]: (slot["in_use"], slot["basis"], slot["weeks"]) for slot in pool["slots"]}
    assert by_hour["2026-11-03T04:45:00+00:00"] == (2, "earlier-weeks", 2)
    assert by_hour["2026-11-03T05:00:00+00:00"] == (8, "earlier-weeks", 2)
    assert by_hour["2026-11-03T06:00:00+00:00"] == (DESKTOPS, "earlier-weeks", 2)
    assert pool["error"]["slots"] == pool["week_before_error"]["slots"] > 0
    assert pool["error"]["mean"] >= 0
    stay = sum(lab_vm.state.power.value == "poweredOn" for lab_vm in desktops(lab)) - len(answer["desktops"])
    [warning] = [line for line in answer["warnings"] if line.startswith("pool office")]
    assert warning == (
        f"pool office: 8 of its desktops are expected in use at 06:00, {stay} stay running and the return of the "
        "others begins at 06:15: set an earlier `back_by`, or `floor: 8`"
    )
    text = lab.run(*EVENING).stdout
    golden("rotate-plan-forecast.txt", text)
    section = text[text.index("desktops expected in use") :]
    assert "vdi-" not in section, "desktops are counted, and none is named"
    assert lab.effects == []


@pytest.mark.long
def test_where_nobody_comes_before_the_return_nothing_is_warned_of(lab: Lab) -> None:
    store_weeks(lab, later)
    answer = plan_night(lab)
    assert max(slot["in_use"] for slot in answer["forecasts"][0]["slots"]) == DESKTOPS
    assert [line for line in answer["warnings"] if "expected" in line] == []


@pytest.mark.long
def test_by_a_day_it_goes_by_the_day_before_and_by_nothing_there_is_none(lab: Lab) -> None:
    none = lab.run(*EVENING)
    assert "no forecast of the morning: nothing was measured yet (gpuops help observe)\n" in none.stdout
    assert plan_night(lab)["forecasts"] == []
    assert not (default_state_dir() / FILE_NAME).exists()
    store_weeks(lab, office, days=1)
    [pool] = plan_night(lab)["forecasts"]
    assert {(slot["basis"], slot["weeks"]) for slot in pool["slots"]} == {("day-before", 0)}
    assert (pool["error"], pool["week_before_error"]) == (None, None)
    assert "the day before  not known" in lab.run(*EVENING).stdout


@pytest.mark.long
def test_a_damaged_store_keeps_no_night_from_being_planned(lab: Lab) -> None:
    default_state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    (default_state_dir() / FILE_NAME).write_bytes(b"no database at all" * 100)
    (default_state_dir() / FILE_NAME).chmod(0o600)
    result = lab.run(*EVENING)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "warning: no forecast: the store of measurements " in result.stdout
    assert "nothing was measured" not in result.stdout


AHEAD: Final = """
version: 1
name: spare
mode: spare-capacity
spare: {keep_free: {a40-8q: 2}, take_idle: true}
pools:
  - name: office
    parked: true
    select: {folder: vdi, profile: "*-8q"}
    idle: {cpu_below_mhz: 500}
    owner: none
    ready: {ahead_min: 60}
ml:
  queue: [{vm: ml-01}]
"""


@pytest.mark.long
@pytest.mark.parametrize(("days", "to_run"), [(0, None), (14, DESKTOPS)])
def test_a_look_tells_how_many_are_to_run(lab: Lab, tmp_path: Path, days: int, to_run: int | None) -> None:
    policy = tmp_path / "spare.yaml"
    policy.write_text(AHEAD)
    if days:
        store_weeks(lab, lambda _: DESKTOPS, days)
    words = ("rotate", "watch", "--policy", str(policy), "--dry-run")
    answer = json.loads(lab.run(*words, "--output", "json").stdout)
    running = sum(vm.state.power.value == "poweredOn" for vm in desktops(lab))
    assert answer["pools"] == [{"pool": "office", "running": running, "to_run": to_run}]
    expectation = f"{to_run} are to run" if to_run is not None else "no forecast: earlier weeks are not known"
    assert f"pool office: {running} desktops run for users, {expectation}\n" in lab.run(*words).stdout


def desktops(lab: Lab) -> list[Any]:
    machines = lab.server.world.by_type("VirtualMachine")
    return [machine for machine in machines if machine.state.name.startswith("vdi-")]
