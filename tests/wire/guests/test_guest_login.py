"""How often a wrong login is tried in guests: each refusal counts towards a lockout of the account."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops import clock
from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.errors import GpuopsError, Refused, StepFailed
from gpuops.model.guests.guest import CHECKPOINT_REFUSALS
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import RunInGuest
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.operations import guest_operations
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import GuestAccount
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests import guest_login
from gpuops.vsphere.guests.guest_commands import start_command
from gpuops.vsphere.guests.guest_login import GuestLogins
from tests.cluster_guests import NAME, USER, cluster_guests
from tests.wire.conftest import target_of
from tests.wire.guests.test_guest_programs import guests, night_and_day, policy
from tests.wire.nights.test_rotation import ML

pytestmark = pytest.mark.long

__all__ = ["guests"]  # a fixture

RIGHT, WRONG = "Kept4now", "Wr0ngKept"


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the guests that have refused a login, one for each attempt."""
    guest_names: list[str] = []
    admit = guest_operations.admit

    def note_refusal(vm: VmEntity, auth: Any) -> str:
        try:
            return admit(vm, auth)
        except Exception as fault:
            if type(fault).__name__.endswith("InvalidGuestLogin"):
                guest_names.append(vm.name)
            raise

    for module in _users_of(admit):
        monkeypatch.setattr(module, "admit", note_refusal)
    yield guest_names


def _users_of(admit: object) -> list[Any]:
    import sys

    return [module for name, module in sys.modules.items()
            if name.startswith("gpuops.sim") and getattr(module, "admit", None) is admit]  # fmt: skip


def change_password(server: SimServer, name: str, password: str = "another-1") -> None:
    for vm in server.world.by_type("VirtualMachine"):
        if vm.name == name:
            vm.state.template = replace(vm.state.template, login=GuestAccount("ml", password))


def test_a_run_over_a_cluster_tries_a_wrong_password_once_and_in_one_guest(tmp_path: Path, refusals: list[str]) -> None:
    from gpuops.extras.clusters.cluster_guests import NotEntered
    from gpuops.extras.clusters.cluster_runs import cluster_run
    from gpuops.extras.clusters.run_request import RunWish

    messages: list[str] = []
    login = GuestLogin(USER, Secret(WRONG))
    with (
        cluster_guests(tmp_path, ssh=False) as cluster,
        Connection(replace(target_of(cluster.server), guest=login)) as connection,
    ):
        site = Site(connection, tmp_path / "state", wall_clock)
        site.say = messages.append
        with pytest.raises(NotEntered, match=f"{NAME}-00: its guest refuses the user or the password") as refused:
            cluster_run(NAME, RunWish(("true",)), site, lambda heard: None, apply=True)
        with pytest.raises(Refused, match=f"{NAME}-00: its guest has refused the login"):
            cluster_run(NAME, RunWish(("true",)), site, lambda heard: None, apply=True)
        assert (refusals, messages, cluster.left()) == ([f"{NAME}-00"], [], [])
    assert refused.value.code == "refused" and WRONG not in repr(refused.value)


@pytest.mark.parametrize("rank", [1, 3])
def test_one_guest_of_a_cluster_with_another_password_is_tried_once_and_the_others_are_cleaned(
    tmp_path: Path, refusals: list[str], rank: int
) -> None:
    from gpuops.extras.clusters.cluster_runs import cluster_run
    from gpuops.extras.clusters.run_request import RunWish

    messages: list[str] = []
    with (
        cluster_guests(tmp_path, ssh=False) as cluster,
        Connection(replace(target_of(cluster.server), guest=GuestLogin(USER, Secret(RIGHT)))) as connection,
    ):
        change_password(cluster.server, f"{NAME}-0{rank}")
        site = Site(connection, tmp_path / "state", wall_clock)
        site.say = messages.append
        with pytest.raises(Refused, match=f"{NAME}-0{rank}: its guest refuses the user or the password"):
            cluster_run(NAME, RunWish(("true",)), site, lambda heard: None, apply=True)
        assert (refusals, cluster.left()) == ([f"{NAME}-0{rank}"], [])
    [leftover] = [line for line in messages if line.startswith("left: ")]
    refusal = "its guest has refused the login of GPUOPS_GUEST_USERNAME, so gpuops does not try again"
    why = f"processes of it may run on: {refusal}"
    assert leftover == f"left: {NAME}-0{rank}: {why} ({guest_login.REFUSED_HINT})"


def hooks_of(server: SimServer, tmp_path: Path, login: GuestLogin) -> dict[Verdict, list[str]]:
    """The reasons of the checkpoint hooks of a morning, by verdict."""
    _, day = night_and_day(server, policy("/opt/keep"), tmp_path, login)
    reasons: dict[Verdict, list[str]] = {}
    for outcome in day.outcomes:
        if isinstance(outcome.step, RunInGuest):
            reasons.setdefault(outcome.verdict, []).append(outcome.reason)
    return reasons


def test_checkpoint_hooks_try_a_wrong_password_in_two_guests_and_in_no_third(
    guests: SimServer, tmp_path: Path, refusals: list[str]
) -> None:
    reasons = hooks_of(guests, tmp_path, GuestLogin("ml", Secret(WRONG)))
    assert len(ML) > 2 and len(refusals) == len(set(refusals)) == 2
    assert set(reasons) == {Verdict.FAILED} and len(reasons[Verdict.FAILED]) == len(ML)
    assert sum("no login tried: the guest of" in why for why in reasons[Verdict.FAILED]) == len(ML) - 2


def test_one_guest_with_another_password_holds_up_no_other_hook(
    guests: SimServer, tmp_path: Path, refusals: list[str]
) -> None:
    for name in sorted(ML)[:1]:
        change_password(guests, name)
    reasons = hooks_of(guests, tmp_path, GuestLogin("ml", Secret(RIGHT)))
    assert (len(reasons[Verdict.DONE]), len(reasons[Verdict.FAILED])) == (len(ML) - 1, 1)
    assert refusals == sorted(ML)[:1]


def test_commands_of_jobs_and_pools_try_it_once_until_half_an_hour_later(
    tmp_path: Path, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        cluster_guests(tmp_path, ssh=False) as cluster,
        Connection(replace(target_of(cluster.server), guest=GuestLogin(USER, Secret(WRONG)))) as connection,
    ):
        refs = {name: connection.inventory().find_vm(name).ref for name in (f"{NAME}-00", f"{NAME}-01")}

        def refusal_text(name: str) -> str:
            with pytest.raises(GpuopsError) as error:
                start_command(connection, refs[name], name, "true", "op")
            assert isinstance(error.value, StepFailed | Refused)
            return error.value.message

        first, second = refs
        assert "refuses the user or the password" in refusal_text(first)
        assert (
            refusal_text(first)
            == f"{first}: its guest has refused the login of GPUOPS_GUEST_USERNAME, so gpuops does not try again"
        )
        assert refusal_text(second) == (
            f"{second}: no login tried: the guest of {first} has refused the login of GPUOPS_GUEST_USERNAME"
        )
        assert refusals == [first]
        passed_s = clock.passed_s
        monkeypatch.setattr(clock, "passed_s", lambda: passed_s() + guest_login.AGAIN_S)
        assert "refuses the user or the password" in refusal_text(second)
        assert refusals == [first, second]


def test_threads_that_enter_guests_at_once_try_a_wrong_password_no_oftener(tmp_path: Path, refusals: list[str]) -> None:
    """As the jobs of a night are stopped before a return."""
    with (
        cluster_guests(tmp_path, ssh=False) as cluster,
        Connection(replace(target_of(cluster.server), guest=GuestLogin(USER, Secret(WRONG)))) as connection,
    ):
        vms = [(vm.ref, vm.name) for vm in connection.inventory().vms.values() if vm.name.startswith(NAME)]

        def refusal_text(vm: tuple[str, str]) -> str:
            with pytest.raises(GpuopsError) as error:
                start_command(connection, *vm, "true", "op", refusals=CHECKPOINT_REFUSALS)
            return error.value.message

        with ThreadPoolExecutor(len(vms)) as threads:
            refusal_texts = list(threads.map(refusal_text, vms))
    assert len(vms) == 4 and len(refusals) == 2
    assert sum("no login tried: " in text for text in refusal_texts) == 2


def test_a_guest_that_accepts_the_login_speaks_for_it_until_one_that_did_refuses_it() -> None:
    logins = GuestLogins()

    def is_admitted(vm: str) -> bool:
        return logins.objection(vm, vm, 1, 0.0) is None

    logins.note_accepted("a")
    logins.note_refused("b", "b", 0.0)
    assert [is_admitted(vm) for vm in "abc"] == [True, False, False]
    logins.note_accepted("a")
    assert [is_admitted(vm) for vm in "abc"] == [True, False, True]
    logins.note_accepted("c")
    logins.note_refused("a", "a", 0.0)
    assert [is_admitted(vm) for vm in "abcd"] == [False] * 4, "the password was changed"
