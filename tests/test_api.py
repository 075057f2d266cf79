"""The corridor: a dry run stops before the executor, and what was agreed to is what is done."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from gpuops import api
from gpuops.api import Site, offline, run
from gpuops.errors import Locked, Refused
from gpuops.execute.journal import FILE_NAME, Journal
from gpuops.execute.state.lock import locked
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict, Wave, refuse
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.step_checks import is_satisfied
from gpuops.plan.core.steps import PowerOffVm
from tests.execute.small_vcenter import SmallVcenter, World, small_world


@dataclass(frozen=True)
class Stop:
    """A verb as small as one can be: a VM that runs is to be off."""

    run_kind: ClassVar[str] = "stop"

    vm: str

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        return ()

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ("host-1",)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        assert catalog.profile("nvidia_a40-24q") is not None, "the catalogue of what this inventory has"
        step = PowerOffVm(self.vm)
        if inventory.vm(self.vm).power is PowerState.SUSPENDED:
            return refuse(Rejection(self.vm, "is suspended"))
        if is_satisfied(step, inventory):
            return Plan(because=("it is off already",))
        return Plan(waves=(Wave("stop", (step,)),), disruptive=True)


@dataclass(frozen=True)
class StopRunning(Stop):
    """The VMs of these that run are to be off."""

    others: tuple[str, ...]

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        steps = tuple(
            PowerOffVm(vm_ref) for vm_ref in (self.vm, *self.others) if inventory.vm(vm_ref).power is PowerState.ON
        )
        return Plan(waves=(Wave("stop", steps),), disruptive=True)


@pytest.fixture
def world() -> World:
    return small_world()


@pytest.fixture
def site(world: World, tmp_path: Path) -> Site:
    return Site(SmallVcenter(world), tmp_path / "state", world.tick)


def test_a_dry_run_shows_the_plan_and_writes_nothing(site: Site, world: World) -> None:
    report = run(Stop("vm-1"), site, apply=False)
    assert (report.changed, report.applied, report.exit_code) == (True, False, 0)
    assert report.plan.steps == (PowerOffVm("vm-1"),)
    assert world.requests == []
    assert not site.state_dir.exists()


def test_what_the_dry_run_showed_is_done(site: Site, world: World) -> None:
    outcomes: list[Outcome] = []
    site.progress = outcomes.append
    report = run(Stop("vm-1"), site, apply=True)
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE]
    assert outcomes == list(report.outcomes)
    assert report.changed
    assert world.power("desktop-01") is PowerState.OFF
    journal = Journal.open(site.state_dir, "vc-uuid", world.tick)
    assert journal.open_runs(["stop"]) == (), "the run is closed"
    journal.close()


def test_the_second_time_there_is_nothing_to_do_and_no_journal_is_opened(site: Site, world: World) -> None:
    world._set_power("vm-1", PowerState.OFF)
    report = run(Stop("vm-1"), site, apply=True)
    assert (report.changed, report.applied, report.exit_code) == (False, True, 0)
    assert report.plan.because == ("it is off already",)
    assert not (site.state_dir / FILE_NAME).exists()


def test_an_infeasible_plan_is_exit_3(site: Site, world: World) -> None:
    world._set_power("vm-1", PowerState.SUSPENDED)
    report = run(Stop("vm-1"), site, apply=True)
    assert (report.changed, report.exit_code) == (False, 3)
    assert world.requests == []


def test_without_consent_nothing_is_done(site: Site, world: World) -> None:
    def no(report: Report) -> None:
        assert report.plan.disruptive
        raise Refused("not confirmed")

    with pytest.raises(Refused):
        run(Stop("vm-1"), site, apply=True, consent=no)
    assert world.requests == []


def answering_late(world: World, change: Callable[[], None]) -> tuple[list[Report], Callable[[Report], None]]:
    reports: list[Report] = []

    def consent(report: Report) -> None:
        reports.append(report)
        if len(reports) == 1:
            world.now += timedelta(hours=2)
            change()

    return reports, consent


def test_an_answer_that_comes_late_is_to_another_world(site: Site, world: World) -> None:
    reports, consent = answering_late(world, lambda: world._set_power("vm-1", PowerState.SUSPENDED))
    report = run(Stop("vm-1"), site, apply=True, consent=consent)
    assert report.exit_code == 3
    assert len(reports) == 1
    assert world.power("desktop-01") is PowerState.SUSPENDED


def test_a_late_answer_to_the_same_plan_is_not_asked_again(site: Site, world: World) -> None:
    reports, consent = answering_late(world, lambda: None)
    assert run(Stop("vm-1"), site, apply=True, consent=consent).exit_code == 0
    assert len(reports) == 1
    assert world.power("desktop-01") is PowerState.OFF


def test_whoever_is_asked_again_keeps_no_return_away(site: Site, world: World) -> None:
    """A question left unanswered until the morning must not hold the lock that the return needs."""
    reports, late = answering_late(world, lambda: world._set_power("vm-2", PowerState.OFF))

    def consent(report: Report) -> None:
        late(report)
        with site.locked_journal("vc-uuid", alone=True, returning=True, doing="day"):
            assert world.requests == []

    assert run(StopRunning("vm-1", ("vm-2",)), site, apply=True, consent=consent).exit_code == 0
    assert [[step.vm for wave in asked_report.plan.waves for step in wave.steps] for asked_report in reports] == [
        ["vm-1", "vm-2"],
        ["vm-1"],
    ]
    assert world.power("desktop-01") is PowerState.OFF


def test_a_rotation_keeps_single_changes_out(site: Site, world: World) -> None:
    with locked(site.state_dir, "vc-uuid", world.tick(), alone=True), pytest.raises(Locked):
        run(Stop("vm-1"), site, apply=True)
    assert world.requests == []


def test_single_changes_run_side_by_side(site: Site, world: World) -> None:
    with locked(site.state_dir, "vc-uuid", world.tick(), alone=False):
        assert run(Stop("vm-1"), site, apply=True).exit_code == 0


def test_a_saved_inventory_is_planned_on_and_never_changed(world: World) -> None:
    with offline(world.snapshot()) as site:
        report = run(Stop("vm-1"), site, apply=False)
        assert report.plan.steps
        with pytest.raises(Refused, match="saved inventory"):
            site.vcenter.submit(PowerOffVm("vm-1"), replace(report.before), "op")


def test_every_name_of_the_api_is_there_and_leads_where_type_checkers_look() -> None:
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
    assert not hasattr(api, "rotate_everything")
    tree = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    imported = {
        (alias.asname or alias.name): f"{node.module}.{alias.name}"
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    imported_objects = {name: getattr(api, name) for name in imported}
    assert {
        name: f"{imported_object.__module__}.{imported_object.__name__}"
        for name, imported_object in imported_objects.items()
    } == imported
