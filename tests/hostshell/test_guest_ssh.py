"""Checkpoint hooks over SSH: the guest's key is checked, time is limited, and desktops do not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from gpuops.api import Site, rotate_day, rotate_night
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError, OutcomeUnknown, Refused, StepFailed
from gpuops.hostshell.guest_ssh import GuestSsh
from gpuops.model.nights.ml_queue import SshDoor
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.privileges import needed_privileges
from gpuops.plan.core.steps import RunInGuest
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.hostshell.server import BREAKS_OFF, NEVER_ENDS, STAYS, Answer, ShellHost, ssh_server
from tests.wire.conftest import target_of
from tests.wire.nights.test_rotation import DESKTOPS, LAB_POLICY, ML

GUEST = "ml-01.lab"
ENDS_S = 30.0


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[Callable[[Answer], ShellHost]]:
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(ssh_server(tmp_path, GUEST, answer))


def shell_of(guest: ShellHost) -> GuestSsh:
    return GuestSsh(guest.known_hosts, guest.ssh.key, lambda host: "127.0.0.1")


def hook_of(guest: ShellHost, limit_s: int = 60) -> RunInGuest:
    return RunInGuest("vm-9", "/opt/keep it", "--all", limit_s, SshDoor("keeper", GUEST, guest.ssh.port))


def run_hook(shell: GuestSsh, task: TaskRef) -> TaskEnd:
    shell.wait(ENDS_S)
    end = shell.end(task)
    assert end is not None
    return end


def error_of(guest: ShellHost, hook: RunInGuest) -> GpuopsError | None:
    shell = shell_of(guest)
    return run_hook(shell, shell.start(hook)).error


def test_the_exit_code_is_all_that_is_told(enter: Callable[[Answer], ShellHost]) -> None:
    guest = enter(lambda command: ("x" * (1 << 20), 3))
    error = error_of(guest, hook_of(guest))
    assert isinstance(error, StepFailed)
    assert error.message == "its program ended with exit code 3"
    assert guest.asked == ["'/opt/keep it' --all"]


def test_one_that_ends_well_is_done_and_known_no_more_to_the_next_process(
    enter: Callable[[Answer], ShellHost],
) -> None:
    guest = enter(lambda command: ("", 0))
    shell = shell_of(guest)
    assert shell.no_way_in(hook_of(guest)) is None
    task = shell.start(hook_of(guest))
    assert run_hook(shell, task).error is None
    assert task.ref == "guest-ssh:vm-9:1"
    forgotten = shell_of(guest).end(task)
    assert forgotten is not None
    assert isinstance(forgotten.error, OutcomeUnknown)


def test_one_that_does_not_end_is_cut_off_at_its_limit(enter: Callable[[Answer], ShellHost]) -> None:
    guest = enter(lambda command: ("", STAYS))
    error = error_of(guest, replace(hook_of(guest, limit_s=1), program="/opt/keep"))
    assert isinstance(error, OutcomeUnknown)
    assert error.message == "ml-01.lab: /opt/keep had not ended after 1 s"


@pytest.mark.long
def test_one_that_writes_for_ever_is_cut_off_too_and_nothing_of_it_is_kept(
    enter: Callable[[Answer], ShellHost],
) -> None:
    guest = enter(lambda command: ("x" * (1 << 16), NEVER_ENDS))
    error = error_of(guest, replace(hook_of(guest, limit_s=1), program="/opt/keep"))
    assert isinstance(error, OutcomeUnknown)
    assert error.message == "ml-01.lab: /opt/keep had not ended after 1 s"


def test_one_that_breaks_off_is_unknown(enter: Callable[[Answer], ShellHost]) -> None:
    guest = enter(lambda command: ("", BREAKS_OFF))
    assert isinstance(error_of(guest, hook_of(guest)), OutcomeUnknown)


@pytest.mark.parametrize("is_known", ["", "another"])
def test_a_guest_whose_key_is_not_the_known_one_is_not_entered(
    enter: Callable[[Answer], ShellHost], is_known: str
) -> None:
    guest = enter(lambda command: ("", 0))
    other_key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    guest.known_hosts.write_text(f"{GUEST} {other_key}" if is_known else "", encoding="ascii")
    shell = shell_of(guest)
    reason = shell.no_way_in(hook_of(guest))
    assert reason == (None if is_known else f"no SSH key of {GUEST} is in {guest.known_hosts}")
    error = run_hook(shell, shell.start(hook_of(guest))).error
    assert isinstance(error, Refused)
    assert "its SSH key is unknown, or not the one in" in error.message
    assert guest.asked == []


@pytest.mark.long
def test_without_a_file_of_known_guests_none_is_entered(enter: Callable[[Answer], ShellHost]) -> None:
    guest = enter(lambda command: ("", 0))
    guest.known_hosts.unlink()
    error = error_of(guest, hook_of(guest))
    assert isinstance(error, Refused)
    assert "GPUOPS_GUEST_SSH_KNOWN_HOSTS" in (error.hint or "")
    assert guest.asked == []


@pytest.mark.long
def test_it_needs_no_privilege_in_vcenter() -> None:
    over_ssh, by_tools = RunInGuest("vm-9", "/opt/keep", ssh=SshDoor("keeper")), RunInGuest("vm-9", "/opt/keep")
    assert needed_privileges([over_ssh])["vm-9"] == frozenset()
    assert needed_privileges([by_tools])["vm-9"]


def policy(guest: ShellHost) -> Policy:
    hook = f"{{program: /opt/keep, ssh: {{user: keeper, host: '{{vm}}.lab', port: {guest.ssh.port}}}}}"
    text = LAB_POLICY.read_text(encoding="utf-8")
    return parse_policy(text.replace("ml:\n", f"ml:\n  checkpoint: {{grace_s: 3600, hook: {hook}}}\n", 1), "over SSH")


def night_and_day(lab: SimServer, guest: ShellHost, state_dir: Path) -> list[Report]:
    reports = []
    for half in (rotate_night, rotate_day):
        with Connection(target_of(lab), shell_of(guest)) as vcenter:
            reports.append(half(policy(guest), Site(vcenter, state_dir, wall_clock), apply=True))
    return reports


@pytest.mark.long
@pytest.mark.parametrize(("status", "verdict"), [(0, Verdict.DONE), (3, Verdict.FAILED)], ids=["kept", "failed"])
def test_a_morning_runs_it_and_every_desktop_is_back(
    enter: Callable[[Answer], ShellHost], tmp_path: Path, status: int, verdict: Verdict
) -> None:
    """The key of one guest is known; of the others the evening warns, and the morning names them."""
    guest = enter(lambda command: ("", status))
    with SimServer(build("lab")) as lab:
        night, day = night_and_day(lab, guest, tmp_path / "state")
        powers = {vm.name: vm.state.power for vm in lab.world.by_type("VirtualMachine")}
        names = {vm.moid: vm.name for vm in lab.world.by_type("VirtualMachine")}
    assert night.exit_code == 0
    warned = [warning for warning in night.plan.warnings if "its checkpoint hook cannot be run: no SSH key" in warning]
    assert {warning.partition(":")[0] for warning in warned} == ML - {"ml-01"}
    hook_outcomes = {
        names[outcome.step.vm]: outcome for outcome in day.outcomes if isinstance(outcome.step, RunInGuest)
    }
    ends = {name: outcome.verdict for name, outcome in hook_outcomes.items()}
    assert ends == {**dict.fromkeys(ML, Verdict.FAILED), "ml-01": verdict}
    assert "its SSH key is unknown, or not the one in" in hook_outcomes["ml-09"].reason
    assert guest.asked == ["/opt/keep"]
    assert day.exit_code == 4
    assert ({powers[name] for name in DESKTOPS}, {powers[name] for name in ML}) == ({Power.ON}, {Power.OFF})


@pytest.mark.long
@pytest.mark.parametrize("name", ["a" * 64, "a..b", "a\0b", "-oProxyCommand=x y"])
def test_a_vm_whose_name_no_host_can_have_ends_with_a_reason(
    enter: Callable[[Answer], ShellHost], capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """In an unattended `rotate day` no one would see the traceback of a thread."""
    guest = enter(lambda command: ("", 0))
    hook = replace(hook_of(guest), ssh=SshDoor("keeper", name, guest.ssh.port))
    assert "cannot be reached by SSH" in (shell_of(guest).no_way_in(hook) or "")
    error = error_of(guest, hook)
    assert isinstance(error, Refused)
    assert "Traceback" not in "".join(capfd.readouterr())
