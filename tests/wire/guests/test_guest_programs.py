"""Checkpoint hooks over real SOAP: programs in the guests of a simulated vCenter, and the faults of its guests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.api import Site, rotate_day, rotate_night
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError, StepFailed
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import RunInGuest, Step
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import GuestAccount as Known
from gpuops.sim.state.vm_state import GuestProgram
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
from tests.wire.conftest import target_of
from tests.wire.nights.test_rotation import DESKTOPS, LAB_POLICY, ML

LOGIN = GuestLogin("ml", Secret("Kept4now"))
PROGRAMS = (GuestProgram("/opt/keep", 30.0), GuestProgram("/opt/fails", 1.0, 3), GuestProgram("/opt/stays", None))


@pytest.fixture
def guests(lab: SimServer) -> SimServer:
    """The lab, whose guests know a user and have programs."""
    for vm in lab.world.by_type("VirtualMachine"):
        vm.state.template = replace(vm.state.template, login=Known("ml", "Kept4now"), programs=PROGRAMS)
    return lab


@contextmanager
def connect(server: SimServer, login: GuestLogin | None = LOGIN) -> Iterator[Connection]:
    with Connection(replace(target_of(server), guest=login)) as connection:
        yield connection


def policy(program: str, grace_s: int = 120) -> Policy:
    text = LAB_POLICY.read_text(encoding="utf-8")
    hook = f"ml:\n  checkpoint: {{grace_s: {grace_s}, hook: {{program: {program}}}}}\n"
    return parse_policy(text.replace("ml:\n", hook, 1), "with a hook")


def night_and_day(server: SimServer, rules: Policy, state_dir: Path, login: GuestLogin | None = LOGIN) -> list[Report]:
    reports = []
    for half in (rotate_night, rotate_day):
        with connect(server, login) as connection:
            reports.append(half(rules, Site(connection, state_dir, wall_clock), apply=True))
    return reports


def everything_is_back(server: SimServer) -> bool:
    powers = {vm.name: vm.state.power.value for vm in server.world.by_type("VirtualMachine")}
    return {powers[name] for name in DESKTOPS} == {"poweredOn"} and {powers[name] for name in ML} == {"poweredOff"}


def hooks(report: Report) -> list[tuple[Verdict, str]]:
    return sorted(
        (outcome.verdict, outcome.reason) for outcome in report.outcomes if isinstance(outcome.step, RunInGuest)
    )


@pytest.mark.long
def test_a_hook_ends_before_its_vm_is_stopped(guests: SimServer, tmp_path: Path) -> None:
    night, day = night_and_day(guests, policy("/opt/keep"), tmp_path)
    assert (night.exit_code, day.exit_code) == (0, 0)
    assert not any("hook" in warning for warning in night.plan.warnings)
    assert hooks(day) == [(Verdict.DONE, "")] * len(ML)
    started = {change.name: change.at for change in guests.world.ledger if change.after.get("program") == "/opt/keep"}
    stopped = {change.name: change.at for change in guests.world.ledger if change.after.get("power") == "poweredOff"}
    assert set(started) == ML
    assert all((stopped[name] - started[name]).total_seconds() >= 30 for name in ML)
    assert everything_is_back(guests)


FAILS = [
    ("/opt/fails", "its program ended with exit code 3"),
    ("/opt/stays", "its program still runs after 120 s: not waited for"),
    ("/opt/none", "{name}: there is no file /opt/none"),
]


@pytest.mark.long
@pytest.mark.parametrize(("program", "reason"), mostly_long(FAILS, FAILS[1:2]))
def test_a_hook_that_fails_is_named_and_everything_is_back(
    guests: SimServer, tmp_path: Path, program: str, reason: str
) -> None:
    _, day = night_and_day(guests, policy(program), tmp_path)
    assert hooks(day) == sorted((Verdict.FAILED, reason.format(name=name)) for name in ML)
    assert day.exit_code == 4
    assert everything_is_back(guests)


@pytest.mark.long
def test_without_a_login_for_guests_the_evening_says_so_and_the_morning_goes_on(
    guests: SimServer, tmp_path: Path
) -> None:
    night, day = night_and_day(guests, policy("/opt/keep"), tmp_path, login=None)
    assert sum("no login for guests" in warning for warning in night.plan.warnings) == len(ML)
    assert all(verdict is Verdict.FAILED for verdict, _ in hooks(day))
    assert everything_is_back(guests)


def submit(server: SimServer, login: GuestLogin | None, name: str) -> Any:
    with connect(server, login) as connection:
        inventory = connection.inventory()
        step: Step = RunInGuest(inventory.find_vm(name).ref, "/opt/fails")
        task = connection.submit(step, inventory, "op")
        assert task is not None
        [end] = connection.wait([task], 60.0)
        return end


@pytest.fixture
def running(guests: SimServer) -> str:
    return next(
        vm.name
        for vm in guests.world.by_type("VirtualMachine")
        if vm.state.power.value == "poweredOn" and vm.state.template.tools
    )


@pytest.mark.long
def test_the_exit_code_is_all_that_is_told(guests: SimServer, running: str) -> None:
    end = submit(guests, LOGIN, running)
    assert isinstance(end.error, StepFailed)
    assert end.error.message == "its program ended with exit code 3"
    assert end.duration_s == 1.0


def test_a_wrong_password_is_refused_and_never_shown(guests: SimServer, running: str) -> None:
    with pytest.raises(GpuopsError) as refused:
        submit(guests, GuestLogin("ml", Secret("Wr0ngKept")), running)
    assert "refuses the user or the password" in refused.value.message
    assert "Wr0ngKept" not in repr(refused.value) + str(refused.value) + repr(refused.value.__cause__)
    assert "Kept4now" not in repr(replace(target_of(guests), guest=LOGIN))


@pytest.mark.long
def test_a_guest_that_declares_no_user_takes_part_in_nothing(lab: SimServer) -> None:
    name = next(vm.name for vm in lab.world.by_type("VirtualMachine")
                if vm.state.power.value == "poweredOn" and vm.state.template.tools)  # fmt: skip
    with pytest.raises(StepFailed, match="guest operations are disabled"):
        submit(lab, LOGIN, name)


@pytest.mark.long
def test_a_login_can_be_tried_without_a_program(guests: SimServer, running: str) -> None:
    with connect(guests) as connection:
        manager = connection.content.guestOperationsManager.authManager
        ref = vim.VirtualMachine(connection.inventory().find_vm(running).ref)
        right = vim.vm.guest.NamePasswordAuthentication(username="ml", password="Kept4now", interactiveSession=False)
        manager.ValidateCredentialsInGuest(ref, right)
        right.password = "wrong"
        with pytest.raises(vim.fault.InvalidGuestLogin):
            manager.ValidateCredentialsInGuest(ref, right)
