"""Sessions that guests report over real SOAP: which guests are read, what keeps a desktop, and what stays unread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuops.advise.idle import judge_vms
from gpuops.api import Site, rotate_night
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.model.desktops.evidence import Source
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.plan.core.steps import SetAttribute, SuspendVm
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.vm_events import SOMEBODY, use_desktop
from gpuops.sim.server import SimServer
from gpuops.sim.services.guest_managers import GuestProcessManager
from gpuops.sim.state.vm_state import GuestAccount, Power
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests.guest_sessions import GuestSessions
from tests.wire.conftest import target_of
from tests.wire.nights.test_rotation import LAB_POLICY

LOGIN = GuestLogin("inspector", Secret("Kept4now"))
TEXT = LAB_POLICY.read_text(encoding="utf-8")
REQUIRED: Policy = parse_policy(
    TEXT.replace("    floor: 0\n", "    floor: 0\n    evidence: {required: [cpu, console, sessions]}\n"), "of the tests"
)
NOT_REQUIRED: Policy = parse_policy(TEXT, "of the tests")
IDLE = "vdi-01"


@dataclass
class Guests:
    """The lab, whose guests know a user, and a site that asks them."""

    server: SimServer
    site: Site
    asked: list[str]
    said: list[str] = field(default_factory=list)

    def look(self, policy: Policy = REQUIRED) -> Inventory:
        self.asked.clear()
        return self.site.read_for_policy(self.site.vcenter.inventory(), policy)

    def why(self, name: str, policy: Policy = REQUIRED) -> str | None:
        vms = self.look(policy).vms.values()
        [judged_vm] = [judged for judged in judge_vms(vms, policy) if judged.vm.name == name]
        return judged_vm.verdict.objection

    def use(self, name: str) -> None:
        """Somebody who leaves no trace but a session."""
        with self.server.world.lock:
            vm = next(vm for vm in self.server.world.by_type("VirtualMachine") if vm.name == name)
            use_desktop(vm, Rule(Effect.HAPPEN))
            vm.state.cpu_usage_mhz = 60


@pytest.fixture
def guests(lab: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guests]:
    guests_entered: list[str] = []
    listed = GuestProcessManager.ListProcessesInGuest

    def note_list(self: GuestProcessManager, call: object, vm: object, auth: object, pids: list[int]) -> object:
        guests_entered.append(self.world.get(vm).name)
        return listed(self, call, vm, auth, pids)

    monkeypatch.setattr(GuestProcessManager, "ListProcessesInGuest", note_list)
    for vm in lab.world.by_type("VirtualMachine"):
        vm.state.template = replace(vm.state.template, login=GuestAccount("inspector", "Kept4now"))
    with Connection(replace(target_of(lab), guest=LOGIN)) as connection:
        guests = Guests(lab, Site(connection, tmp_path / "state", wall_clock), guests_entered)
        guests.site.sources = {Source.SESSIONS: GuestSessions(connection, guests.said.append)}
        yield guests


def test_a_session_in_the_guest_keeps_its_desktop_and_no_name_is_told(guests: Guests) -> None:
    assert guests.why(IDLE) is None
    guests.use(IDLE)
    assert guests.why(IDLE) == "1 session(s), as its guest reports"
    inventory = guests.look()
    reported_sessions = (inventory.find_vm(IDLE).sessions or {})[Source.SESSIONS]
    assert (reported_sessions.count, reported_sessions.used, reported_sessions.youngest_s) == (1, True, 0)
    assert SOMEBODY not in repr(inventory) and SOMEBODY.partition("\\")[2] not in repr(inventory)
    assert guests.said == []


@pytest.mark.long
def test_only_guests_of_pools_that_require_it_are_entered_and_none_that_something_else_keeps(guests: Guests) -> None:
    guests.look(NOT_REQUIRED)
    assert guests.asked == []
    inventory = guests.look()
    busy = inventory.find_vm("vdi-05")
    assert IDLE in guests.asked and "vdi-05" not in guests.asked
    assert not [name for name in guests.asked if not name.startswith("vdi-")]
    assert (busy.sessions or {})[Source.SESSIONS].because == "it was not asked: another reading shows that it is in use"
    assert len(guests.asked) == len(set(guests.asked))


@pytest.mark.long
def test_a_login_that_is_refused_is_tried_in_one_guest(guests: Guests, lab: SimServer) -> None:
    for vm in lab.world.by_type("VirtualMachine"):
        vm.state.template = replace(vm.state.template, login=GuestAccount("inspector", "another"))
    for _ in range(2):
        reported_sessions = [(vm.sessions or {}).get(Source.SESSIONS) for vm in guests.look().vms.values()]
        assert {session.used for session in reported_sessions if session is not None} == {None}
        assert len(guests.asked) <= 1
    assert guests.asked == []
    [warning] = guests.said
    assert "its guest refuses the user or the password of GPUOPS_GUEST_USERNAME (gpuops help idle)" in warning
    assert guests.why(IDLE) == "its sessions are not known: a guest has refused the login of GPUOPS_GUEST_USERNAME"


@pytest.mark.long
def test_what_a_guest_does_not_tell_is_unknown_and_keeps_its_desktop(guests: Guests, lab: SimServer) -> None:
    for vm in lab.world.by_type("VirtualMachine"):
        vm.state.template = replace(vm.state.template, login=None, tools=vm.name != "vdi-02")
    assert guests.why(IDLE) == f"its sessions are not known: {IDLE}: guest operations are disabled in its guest"
    assert guests.why("vdi-02") == "its sessions are not known: VMware Tools do not run in its guest"
    assert "vdi-02" not in guests.asked
    guests.site.sources = {}
    assert guests.why(IDLE) == "nothing lists the sessions in its guest (GPUOPS_GUEST_USERNAME)"


@pytest.mark.long
def test_guests_that_take_too_long_are_unknown(guests: Guests, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = guests.site.vcenter.inventory()
    running = [vm for vm in inventory.vms.values() if vm.name in ("vdi-01", "vdi-02", "vdi-03")]
    passed = iter(range(0, 100_000, 200))
    slow = SimpleNamespace(passed_s=lambda: float(next(passed)))
    monkeypatch.setattr("gpuops.vsphere.guests.guest_sessions.clock", slow)
    reported_sessions = guests.site.sources[Source.SESSIONS].sessions(running, inventory).values()
    assert [session.because for session in reported_sessions] == [
        "",
        "other guests took too long",
        "other guests took too long",
    ]


@pytest.mark.long
def test_a_session_that_begins_after_the_plan_keeps_its_desktop(guests: Guests) -> None:
    def watch(outcome: object) -> None:
        step = getattr(outcome, "step", None)
        if isinstance(step, SetAttribute) and not used:
            used.append(names[step.vm])
            guests.use(names[step.vm])

    used: list[str] = []
    names = {vm.ref: vm.name for vm in guests.site.vcenter.inventory().vms.values()}
    guests.site.progress = watch
    report = rotate_night(REQUIRED, guests.site, apply=True)
    [name] = used
    suspended_names = {names[outcome.step.vm] for outcome in report.outcomes if isinstance(outcome.step, SuspendVm)}
    running = {vm.name for vm in guests.server.world.by_type("VirtualMachine") if vm.state.power is Power.ON}
    assert name in suspended_names, "it was planned"
    assert name in running
    assert "1 session(s), as its guest reports" in {outcome.reason for outcome in report.outcomes}
