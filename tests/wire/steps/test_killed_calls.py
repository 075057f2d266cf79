"""Single changes that are cut off at each point of a step: the next call of the same kind settles and ends their runs.

A call that is cut off here ends as by `kill -9`: nothing of gpuops is asked any more, what was sent goes on in vCenter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from gpuops.api import Site, configure, roles, rotate_init, run
from gpuops.config.role_file import load_roles
from gpuops.execute.journal.record import Kind
from gpuops.execute.past.past_runs import history
from gpuops.execute.state.lock import locked
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.server import SimServer
from tests.harness.killing import POINTS, cut_off
from tests.wire.nights.test_founding import LEASED
from tests.wire.roles.test_least_privilege import TEMPLATES, effects, site_of

ATTACH: Final = Attach("ml-07", profile="a100-3-20c", power=PowerPolicy.ON)
EQUAL: Final = SetScheduler(SchedulerPolicy.EQUAL_SHARE, gpu=("0000:d8:00.0",), host="esx-01.lab")
ROLES: Final = load_roles(TEMPLATES / "roles" / "night.yaml")[:2]


def attach(site: Site) -> None:
    assert run(ATTACH, site, apply=True).exit_code == 0


def set_scheduler(site: Site) -> None:
    assert configure(EQUAL, site, apply=True).exit_code == 0


def apply_roles(site: Site) -> None:
    assert all(state.right or state.written for state in roles(ROLES, site, apply=True))
    assert all(state.right for state in roles(ROLES, site))


def init(site: Site) -> None:
    rotate_init(LEASED, site)
    assert rotate_init(LEASED, site).complete


WITH_TASK: Final = {
    "attach": (attach, "ReconfigureVm", ["ReconfigVM_Task", "PowerOnVM_Task"]),
    "start after attach": (attach, "PowerOnVm", ["ReconfigVM_Task", "PowerOnVM_Task"]),
}
WITHOUT_TASK: Final = {
    "host setting": (set_scheduler, "ConfigureModule", ["UpdateModuleOptionString"]),
    "role": (apply_roles, "SetRole", []),  # the ledger holds no roles; vCenter refuses a second one of a name
    "attribute": (init, "DefineAttribute", ["AddCustomFieldDef", "CreateVM_Task"]),
}
CASES: Final = [
    pytest.param(*case, line, before, id=f"{name}, {point}")
    for cases, lines in ((WITH_TASK, Kind), (WITHOUT_TASK, {Kind.INTENT, Kind.SETTLED}))
    for name, case in cases.items()
    for point, line, before in POINTS
    if line in lines
]


def check_settled(site: Site, state_dir: Path) -> None:
    """No run is open, and each intent has an outcome."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        assert journal is not None and not journal.state.runs
        bodies = [(record.kind, record.body) for record in journal.records()]
    intents = {body["op"] for kind, body in bodies if kind is Kind.INTENT}
    assert intents == {body["op"] for kind, body in bodies if kind is Kind.SETTLED}
    assert all(change.run.ends is not None for change in history(state_dir).changes)


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize(("call", "step", "sent", "line", "before"), CASES)
def test_a_change_that_is_cut_off_is_made_once_and_its_run_ended_by_the_same_call(
    lab: SimServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Site], None],
    step: str,
    sent: list[str],
    line: Kind,
    before: bool,
) -> None:
    with site_of(lab, tmp_path) as site:
        cut_off(lambda: call(site), step, line, monkeypatch, before=before)
        call(site)
        check_settled(site, tmp_path)
    assert effects(lab) == sent


def test_the_run_of_a_call_that_is_still_at_work_stays_open(
    lab: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that are at work share the lock."""
    with site_of(lab, tmp_path) as site:
        cut_off(lambda: attach(site), "ReconfigureVm", Kind.SETTLED, monkeypatch, before=False)
        with locked(tmp_path, site.vcenter.uuid, site.clock(), alone=False):
            attach(site)
            with site.journal_to_read(site.vcenter.uuid) as journal:
                assert journal is not None and [run.kind for run in journal.open_runs(("attach",))] == ["attach"]
        attach(site)
        check_settled(site, tmp_path)


@pytest.mark.parametrize("phase", [Phase.BEFORE, Phase.AFTER], ids=["request lost", "reply lost"])
def test_an_attribute_whose_request_or_reply_is_lost_is_defined_once(
    lab: SimServer, tmp_path: Path, phase: Phase
) -> None:
    lab.world.injector.add(Rule(Effect.RESET, "AddCustomFieldDef", phase=phase, times=1))
    with site_of(lab, tmp_path) as site:
        init(site)
        check_settled(site, tmp_path)
    assert effects(lab) == ["AddCustomFieldDef", "CreateVM_Task"]
