"""A checkpoint hook has its time, and none keeps a desktop from coming back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import StepFailed
from gpuops.execute.rotation.rotation import resume, rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.steps import PowerOffVm, ResumeVm, RunInGuest, ShutDownGuest
from tests.execute.journal.postgres import Server
from tests.execute.nights import POLICY_TEXT, Night
from tests.execute.small_vcenter import Killed, SmallVcenter

HOOK = "ml:\n  checkpoint: {grace_s: 90, hook: {program: /opt/keep}}"
POLICY = parse_policy(POLICY_TEXT.replace("ml:", HOOK, 1), "with a hook")


@pytest.fixture
def night(tmp_path: Path) -> Night:
    """After an evening that took two desktops for ml-01 and ml-02."""
    night = Night(tmp_path / "state")
    run_kind(night, RunKind.NIGHT)
    return night


def run_kind(night: Night, which: RunKind) -> Report:
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    return rotate(which, POLICY, site, apply=True, consent=agreed)


def hooks(report: Report) -> dict[str, Outcome]:
    return {outcome.step.vm: outcome for outcome in report.outcomes if isinstance(outcome.step, RunInGuest)}


def test_each_runs_before_its_vm_is_asked_to_stop(night: Night) -> None:
    report = run_kind(night, RunKind.DAY)
    assert report.exit_code == 0
    assert {vm: outcome.verdict for vm, outcome in hooks(report).items()} == {
        "vm-91": Verdict.DONE,
        "vm-92": Verdict.DONE,
    }
    for vm in ("vm-91", "vm-92"):
        of_vm = [type(step) for step in night.world.requests if step.vm == vm]
        assert of_vm.index(RunInGuest) < of_vm.index(ShutDownGuest)


def test_one_that_fails_is_named_and_everything_comes_back(night: Night) -> None:
    night.world.failing["vm-91"] = StepFailed("its program ended with exit code 3")
    report = run_kind(night, RunKind.DAY)
    assert hooks(report)["vm-91"].reason == "its program ended with exit code 3"
    assert report.exit_code == 4
    assert night.world.power("ml-01") is PowerState.OFF
    assert {night.world.power("desktop-01"), night.world.power("desktop-02")} == {PowerState.ON}


def test_one_that_does_not_end_is_left_after_its_grace(night: Night) -> None:
    began = night.world.now
    night.world.hung.add("vm-91")
    report = run_kind(night, RunKind.DAY)
    assert hooks(report)["vm-91"].reason == "its program still runs after 90 s: not waited for"
    assert (night.world.now - began).total_seconds() < 400
    assert night.world.power("ml-01") is PowerState.OFF
    assert night.world.power("desktop-01") is PowerState.ON


def test_one_whose_reply_was_lost_is_started_again(night: Night) -> None:
    night.world.lose_before.add(RunInGuest)
    report = run_kind(night, RunKind.DAY)
    assert {outcome.verdict for outcome in hooks(report).values()} == {Verdict.DONE}


def test_a_morning_that_was_cut_off_runs_it_again_and_does_not_wait_for_the_first(night: Night) -> None:
    def killed(step: object) -> None:
        if isinstance(step, ShutDownGuest):
            raise Killed(str(step))

    night.world.on_submit = killed
    with pytest.raises(Killed):
        run_kind(night, RunKind.DAY)
    night.world.on_submit = lambda step: None
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    report = resume(site, apply=True, consent=agreed)
    assert report.exit_code == 0
    assert any(isinstance(step, ResumeVm) for step in night.world.requests)
    assert not any(isinstance(step, PowerOffVm) for step in night.world.requests)
    assert sum(isinstance(step, RunInGuest) and step.vm == "vm-91" for step in night.world.requests) == 2


@pytest.mark.parametrize(
    ("with_policy", "file_mode", "runs"),
    [(False, None, False), (True, None, True), (False, 0o600, True), (False, 0o666, False)],
)
def test_one_of_a_shared_journal_runs_where_a_policy_file_of_this_machine_names_it(
    postgresql: Server, tmp_path: Path, with_policy: bool, file_mode: int | None, runs: bool
) -> None:
    """Write access to the database must not be enough to run a command in a guest."""
    night, url = Night(tmp_path / "state"), postgresql.database()
    file = tmp_path / "policy.yaml"
    if file_mode is not None:
        file.write_text(POLICY.text, encoding="utf-8")
        file.chmod(file_mode)

    def rotated(which: RunKind, policy: Policy | None) -> Report:
        site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick, journal_url=url, policy_files=(file,))
        return rotate(which, policy, site, apply=True, consent=agreed)

    rotated(RunKind.NIGHT, POLICY)
    report = rotated(RunKind.DAY, POLICY if with_policy else None)
    assert report.exit_code == 0
    assert bool(hooks(report)) is runs
    assert any("does not run /opt/keep" in warning for warning in report.plan.warnings) is not runs
    assert night.world.power("ml-01") is PowerState.OFF
    assert night.world.power("desktop-01") is PowerState.ON


def test_a_return_that_was_cut_off_runs_none_of_a_shared_journal_either(postgresql: Server, tmp_path: Path) -> None:
    night, url = Night(tmp_path / "state"), postgresql.database()

    def site() -> Site:
        return Site(SmallVcenter(night.world), night.state_dir, night.world.tick, journal_url=url)

    def killed(step: object) -> None:
        if isinstance(step, ShutDownGuest):
            raise Killed(str(step))

    rotate(RunKind.NIGHT, POLICY, site(), apply=True, consent=agreed)
    night.world.on_submit = killed
    with pytest.raises(Killed):
        rotate(RunKind.DAY, None, site(), apply=True, consent=agreed)
    night.world.on_submit = lambda step: None
    report = resume(site(), apply=True, consent=agreed)
    assert report.exit_code == 0
    assert not any(isinstance(step, RunInGuest) for step in night.world.requests)
