"""Every figure of a report's nights beside what the VMs of drawn nights really did: killed, resumed, in a row."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.advise.gpu_hours import owner_in, showback
from gpuops.execute.past.past_runs import history
from gpuops.execute.runs import RunKind
from gpuops.execute.site import catalog_of
from gpuops.extras.web.page.fleet_report import FleetReport, fleet_report_document
from gpuops.extras.web.page.fleet_report_text import focus_csv
from gpuops.model.nights.history import EventKind
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.examination import Examination
from gpuops.report.document import as_values
from gpuops.report.monitoring.fleet_view import fleet
from tests.execute.nights import Night
from tests.execute.power_log import PowerLog

WITHIN_H = 0.05
"""What the journal notes after the fact, a shutdown's end among it, is late by the seconds of the look at it."""


@dataclass(frozen=True)
class DrawnNight:
    """How one night goes."""

    hours: float
    """From its suspends until the morning."""
    night_killed_at: int | None
    day_killed_at: int | None


drawn_nights = st.lists(
    st.builds(
        DrawnNight,
        hours=st.floats(0.5, 8.5),
        night_killed_at=st.none() | st.integers(2, 60),
        day_killed_at=st.none() | st.integers(2, 60),
    ),
    min_size=1,
    max_size=3,
)


def play(night: Night, how: DrawnNight, evening: datetime) -> None:
    """One night from its evening on; a killed run is resumed at once."""
    night.world.now = max(night.world.now, evening)
    for kind, kill_at in ((RunKind.NIGHT, how.night_killed_at), (RunKind.DAY, how.day_killed_at)):
        if kill_at is None:
            night.run(kind)
        elif night.killed(kind, kill_at):
            night.resume()
            if kind is RunKind.DAY:
                night.run(kind)  # one that was killed before it began has nothing to resume
        if kind is RunKind.NIGHT:
            night.world.now += timedelta(hours=how.hours)


def report_night(night: Night) -> tuple[FleetReport, dict[str, Any]]:
    inventory = night.world.snapshot()
    catalog = catalog_of(inventory)
    nights = history(night.state_dir, kind=EventKind.NIGHT)
    owners = OwnerKey()
    fleet_report = FleetReport(
        fleet=fleet(inventory, catalog),
        examination=Examination(inventory, (), ()),
        capacity=capacity(inventory, catalog, Scope()),
        nights=nights,
        since=None,
        policy=None,
        idle=None,
        showback=showback(nights.nights, owner_in(inventory, owners)),
        owners=owners,
    )
    return fleet_report, as_values(fleet_report_document(fleet_report))


@pytest.mark.long
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=drawn_nights)
def test_every_figure_is_what_the_vms_really_did(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[DrawnNight]
) -> None:
    check_figures(tmp_path_factory, drawn)


@pytest.mark.long
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=drawn_nights)
def test_every_figure_of_many_nights(tmp_path_factory: pytest.TempPathFactory, drawn: list[DrawnNight]) -> None:
    check_figures(tmp_path_factory, drawn)


def check_figures(tmp_path_factory: pytest.TempPathFactory, drawn: list[DrawnNight]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        night = Night(tmp_path_factory.mktemp("night") / "state")
        log = PowerLog(night.world, patch)
        first = night.world.now
        for number, how in enumerate(drawn):
            play(night, how, first + number * timedelta(days=1))
        fleet_report, document = report_night(night)

    harvested = log.gpu_hours("ml", PowerState.ON)
    assert document["totals"]["gpu_hours"] == pytest.approx(harvested, abs=WITHIN_H * len(drawn))
    assert document["totals"]["gpu_hours"] == pytest.approx(
        sum(night_row["gpu_hours"] for night_row in document["nights"]), abs=1e-3
    )
    check_owners(fleet_report, document)
    if document["last_night"] is not None:
        check_last_night(document, log)


def check_owners(fleet_report: FleetReport, document: dict[str, Any]) -> None:
    owners = document["showback"]["owners"]
    total = document["totals"]["gpu_hours"]
    assert sum(owner["gpu_hours"] for owner in owners) == pytest.approx(total, abs=1e-3)
    if total:
        assert sum(round(100 * owner["percent"]) for owner in owners) == 10_000
    lines = list(csv.DictReader(io.StringIO(focus_csv(fleet_report.showback))))
    assert sum(float(line["ConsumedQuantity"]) for line in lines) == pytest.approx(total, abs=1e-3)
    assert len(lines) == sum(len(vm.held) for night in fleet_report.nights.nights for vm in night.ml)


def check_last_night(document: dict[str, Any], log: PowerLog) -> None:
    """Each period of the Gantt is one in which the VM was really so, and each desktop's steps are around it."""
    last = document["last_night"]
    assert last["night"] == document["nights"][0]["night"]
    for vm in last["vms"]:
        real = log.periods(vm["ref"], PowerState.ON if vm["role"] == "ml" else PowerState.SUSPENDED)
        shown_periods = [
            (datetime.fromisoformat(period["from"]), datetime.fromisoformat(period["until"])) for period in vm["held"]
        ]
        assert len(shown_periods) <= len(real)
        for (first, until), (begins, ends) in zip(
            shown_periods, real[-len(shown_periods) :] if shown_periods else [], strict=True
        ):
            assert abs((first - begins).total_seconds()) < WITHIN_H * 3600
            assert abs((until - ends).total_seconds()) < WITHIN_H * 3600
        steps_done = [step["what"] for step in vm["steps"] if step["done"]]
        assert ("suspend" in steps_done or "start" in steps_done or not shown_periods) is True
        assert all(step["until"] is None or step["from"] <= step["until"] for step in vm["steps"])


@pytest.mark.long
def test_the_deadline_is_that_of_the_policy_of_the_night(tmp_path_factory: pytest.TempPathFactory) -> None:
    night = Night(tmp_path_factory.mktemp("night") / "state")
    night.run(RunKind.NIGHT)
    _, document = report_night(night)
    assert document["last_night"]["night"] == "2026-11-20"
    assert document["last_night"]["back_by"] == "2026-11-21T06:00:00+00:00"
    assert document["last_night"]["outcome"] == "open"
    assert document["totals"]["gpu_hours"] is None
