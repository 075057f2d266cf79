"""Somebody who thinks over whether a rotation may be done keeps no return of desktops away."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from gpuops.errors import Locked, Refused, UsageError
from gpuops.execute.rotation.rotation import restore, resume, rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import WITHOUT_GUESTS, Consent, Site
from gpuops.execute.state.lock import locked
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import ResumeVm, SuspendVm
from tests.execute.nights import POLICY, Night, effects, morning_is_good
from tests.execute.small_vcenter import SmallVcenter

Act = Callable[[Site, Consent], Report]


@pytest.fixture
def site(night: Night) -> Site:
    return Site(SmallVcenter(night.world), night.state_dir, night.world.tick)


def begin_night(site: Site, consent: Consent) -> Report:
    return rotate(RunKind.NIGHT, POLICY, site, apply=True, consent=consent, asks=True)


def brought_back(site: Site, consent: Consent) -> Report:
    return rotate(RunKind.DAY, POLICY, site, apply=True, consent=consent, asks=True)


def one_brought_back(site: Site, consent: Consent) -> Report:
    return restore(POLICY, site, ("desktop-01", "ml-01"), apply=True, consent=consent, asks=True)


@pytest.mark.parametrize("act", [begin_night, brought_back, one_brought_back])
def test_a_return_begins_while_somebody_thinks_it_over(night: Night, site: Site, act: Act) -> None:
    if act is not begin_night:
        night.run(RunKind.NIGHT)
    before, reports = len(night.world.requests), list[Report]()

    def consent(report: Report) -> None:
        with site.locked_journal("vc-uuid", alone=True, returning=True, doing="rotate day"):
            reports.append(report)
        assert len(night.world.requests) == before

    assert act(site, consent).exit_code == 0
    assert len(reports) == 1
    assert reports[0].plan.steps
    assert len(night.world.requests) > before


def test_what_was_cut_off_is_asked_about_without_the_lock_too(night: Night, site: Site) -> None:
    assert night.killed(RunKind.NIGHT, 12)
    night.world.settle()

    def consent(report: Report) -> None:
        with site.locked_journal("vc-uuid", alone=True, returning=True, doing="rotate day"):
            pass

    assert resume(site, apply=True, consent=consent, asks=True).exit_code == 0
    assert night.open_runs() == 0
    night.run(RunKind.DAY)
    morning_is_good(night)


def test_a_desktop_that_is_used_by_then_is_left_out_and_nobody_is_asked_again(night: Night, site: Site) -> None:
    reports: list[Report] = []

    def consent(report: Report) -> None:
        reports.append(report)
        night.world._set_power("vm-1", PowerState.SUSPENDED)  # by another user

    report = begin_night(site, consent)
    assert SuspendVm("vm-1") in reports[0].plan.steps
    assert SuspendVm("vm-1") not in report.plan.steps
    assert [effect.step.vm for effect in effects(night.world, SuspendVm)] == [
        step.vm for step in report.plan.steps if isinstance(step, SuspendVm)
    ]


def test_more_than_was_agreed_to_is_asked_about_again(night: Night, site: Site) -> None:
    night.run(RunKind.NIGHT)
    for ref in [ref for ref, vm in night.world.vms.items() if vm.name.startswith("ml-")]:
        night.world._set_power(ref, PowerState.OFF)
    night.world._set_power("vm-1", PowerState.ON)  # its user has started it
    reports: list[Report] = []

    def consent(report: Report) -> None:
        reports.append(report)
        night.world._set_power("vm-1", PowerState.SUSPENDED)  # and has left it again

    assert brought_back(site, consent).exit_code == 0
    resumed = [{step.vm for step in shown.plan.steps if isinstance(step, ResumeVm)} for shown in reports]
    assert [("vm-1" in vms) for vms in resumed] == [False, True]
    assert night.world.power("desktop-01") is PowerState.ON


def test_a_no_changes_nothing_and_is_not_asked_twice(night: Night, site: Site) -> None:
    reports: list[Report] = []

    def consent(report: Report) -> None:
        reports.append(report)
        raise Refused("not confirmed")

    with pytest.raises(Refused, match="not confirmed"):
        begin_night(site, consent)
    assert (len(reports), night.world.requests, night.open_runs()) == (1, [], 0)


def test_nobody_is_asked_whether_something_may_be_done_beside_another_run(night: Night, site: Site) -> None:
    with locked(site.state_dir, "vc-uuid", night.world.tick(), alone=True, doing="rotate day"), pytest.raises(Locked):
        begin_night(site, lambda report: pytest.fail("asked"))


@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_only_a_night_that_is_resumed_needs_the_login_to_guests(night: Night, site: Site, kind: RunKind) -> None:
    if kind is RunKind.DAY:
        night.run(RunKind.NIGHT)
    assert night.killed(kind, 12)
    night.world.settle()
    site.no_guests = UsageError("no password for the guest user 'gpuops'")
    go_on = partial(resume, site, apply=True)
    if kind is RunKind.NIGHT:
        sent = len(night.world.requests)
        with pytest.raises(UsageError, match="no password"):
            go_on()
        assert len(night.world.requests) == sent
        return
    report = go_on()
    assert (report.exit_code, [line for line in report.plan.warnings if line.endswith(WITHOUT_GUESTS)]) == (
        0,
        [f"no password for the guest user 'gpuops': {WITHOUT_GUESTS}"],
    )
    morning_is_good(night)
