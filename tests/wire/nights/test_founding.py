"""`rotate init` over real SOAP: what a policy wants is made once, by a login that may, and a night needs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.api import doctor, rotate_day, rotate_init, rotate_night, run
from gpuops.config.policy import parse_policy
from gpuops.errors import NoPermission, PartlyDone, Refused
from gpuops.execute.journal.record import Kind
from gpuops.execute.rotation.night_setup import INIT
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.host_findings import Severity
from gpuops.plan.rotation.lease_rules import KEY, parse_lease
from gpuops.plan.rotation.prerequisites import Setup
from gpuops.plan.vm.attach import Attach
from gpuops.report.layout import plain
from gpuops.report.nights.rotation_setup_view import setup_text
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.objects.virtual_machine import VirtualMachineSnapshot
from gpuops.sim.operations.vms import movement, snapshots
from gpuops.sim.server import SimServer
from tests.harness.killing import POINTS, cut_off
from tests.wire.roles.test_least_privilege import NIGHT_ROLES, POLICY, effects, night_account, site_of

pytestmark = pytest.mark.long

LOCK = "gpuops-lock"
LEASED = parse_policy(POLICY.read_text(encoding="utf-8") + f"\nlock_vm: {LOCK}\n", "leased")
MAKES = ("VirtualMachine.Inventory.Create", "Resource.AssignVMToPool", "Datastore.AllocateSpace")


@pytest.mark.long
def test_it_makes_what_is_missing_once_and_a_night_goes_by_it(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path) as site:
        for apply in (True, False):
            with pytest.raises(Refused) as refused:
                rotate_night(LEASED, site, apply=apply)
            assert refused.value.message.endswith(
                "no VM is called gpuops-lock (lock_vm); there is no custom attribute gpuops.rotation (marker)"
            )
            assert refused.value.hint.startswith("gpuops rotate init --policy FILE")
        foreseen = rotate_init(LEASED, site, apply=False)
        assert (foreseen.complete, foreseen.made, effects(lab)) == (False, False, [])
        first_run = rotate_init(LEASED, site)
        assert first_run.undefined == foreseen.undefined == ("gpuops.rotation",)
        assert first_run.lock_vm_missing == foreseen.lock_vm_missing
        assert effects(lab) == ["AddCustomFieldDef", "CreateVM_Task"]
        second_run = rotate_init(LEASED, site)
        assert (second_run.complete, second_run.made, len(effects(lab))) == (True, False, 2)
        assert rotate_night(LEASED, site, apply=True).exit_code == 0
        assert rotate_day(LEASED, site, apply=True).exit_code == 0
        assert run(Attach(LOCK, profile="a100-3-20c"), site, apply=False).exit_code in (0, 3), "it is a VM like others"


@pytest.mark.long
def test_a_lock_vm_made_anew_carries_the_number_of_the_leases_before_it(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path) as site:
        rotate_init(LEASED, site)
        assert rotate_night(LEASED, site, apply=True).exit_code == 0
        with lab.world.lock:
            [vm] = [vm for vm in lab.world.by_type("VirtualMachine") if vm.name == LOCK]
            before = parse_lease(vm.state.option(KEY) or "")
            movement.remove_vm(vm, somebody(lab.world, "Destroy_Task"))
        assert rotate_init(LEASED, site).made
        [lock_vm] = [vm for vm in lab.world.by_type("VirtualMachine") if vm.name == LOCK]
        lease = parse_lease(lock_vm.state.option(KEY) or "")
        assert before is not None
        assert lease is not None
        assert (lease.nonce, lease.epoch) == ("", before.epoch)
        assert rotate_night(LEASED, site, apply=True).exit_code == 0


def test_a_lock_vm_gets_its_number_after_a_call_that_was_killed_before_writing_it(
    lab: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site_of(lab, tmp_path) as site:
        rotate_init(LEASED, site)
        assert rotate_night(LEASED, site, apply=True).exit_code == 0
        with lab.world.lock:
            [vm] = [vm for vm in lab.world.by_type("VirtualMachine") if vm.name == LOCK]
            before = parse_lease(vm.state.option(KEY) or "")
            movement.remove_vm(vm, somebody(lab.world, "Destroy_Task"))
        cut_off(lambda: rotate_init(LEASED, site), "CreateVm", Kind.SETTLED, monkeypatch, before=False)
        assert rotate_init(LEASED, site).complete
        [lock_vm] = [vm for vm in lab.world.by_type("VirtualMachine") if vm.name == LOCK]
        lease = parse_lease(lock_vm.state.option(KEY) or "")
        assert before is not None and lease is not None
        assert (lease.nonce, lease.epoch) == ("", before.epoch)
        assert rotate_night(LEASED, site, apply=True).exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize(("name", "role"), [("vdi-01", "a desktop of pool office"), ("ml-01", "a VM of the ML queue")])
def test_a_vm_of_the_rotation_is_no_lock_vm(lab: SimServer, tmp_path: Path, name: str, role: str) -> None:
    """Its settings would be written each minute, and while it is suspended the lease could not be renewed."""
    wrong = replace(LEASED, lock_vm=name)
    with site_of(lab, tmp_path) as site:
        for make in (rotate_init, rotate_night):
            with pytest.raises(Refused) as refused:
                make(wrong, site, apply=True)
            assert refused.value.message == f"lock_vm: {name} is {role}"
        assert effects(lab) == []
        assert rotate_day(wrong, site, apply=True).exit_code == 0, "a return goes on"


def test_an_attribute_of_hosts_is_refused_before_anything_is_made(lab: SimServer, tmp_path: Path) -> None:
    """Its name is taken, and no VM can carry it."""
    lab.world.custom_fields.define("gpuops.rotation", "HostSystem")
    with site_of(lab, tmp_path) as site:
        for apply in (False, True):
            with pytest.raises(Refused) as refused:
                rotate_init(LEASED, site, apply=apply)
            assert refused.value.message == (
                "custom attribute gpuops.rotation is defined for objects of type HostSystem, so VMs cannot have it"
            )
            assert refused.value.hint.startswith("name another attribute in the policy, or rename that one")
        assert effects(lab) == []


def test_a_marker_that_is_an_attribute_of_hosts_takes_no_desktop(lab: SimServer, tmp_path: Path) -> None:
    """A policy without a lock VM does not need `rotate init`: the night reports the marker and suspends nothing."""
    lab.world.custom_fields.define("gpuops.rotation", "HostSystem")
    with site_of(lab, tmp_path) as site:
        report = rotate_night(replace(LEASED, lock_vm=None), site, apply=True)
    assert report.exit_code == 4
    failed = [outcome.reason for outcome in report.outcomes if outcome.verdict is Verdict.FAILED]
    assert failed
    assert all(reason.startswith("custom attribute gpuops.rotation is defined for objects of ") for reason in failed)
    assert not any(effect.startswith(("Suspend", "PowerOn")) for effect in effects(lab))


def test_desktops_without_their_owner_are_named(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path) as site:
        [unmarked] = rotate_init(LEASED, site, apply=False).unmarked
    assert (unmarked.pool, unmarked.mark) == ("office", "attribute gpuops.owner = office")
    vms = {vm.name: vm for vm in lab.world.by_type("VirtualMachine")}
    key = lab.world.custom_fields.define("gpuops.owner")
    assert 0 < len(unmarked.desktops) < unmarked.of
    assert {vms[name].state.attributes.get(key) for name in unmarked.desktops} <= {None, "finance"}


@pytest.mark.long
def test_who_may_makes_it_and_the_night_account_uses_it(lab: SimServer, tmp_path: Path) -> None:
    """The login of the night may neither define nor create anything, and is refused before it suspends a VM."""
    night_account(lab, defined=False)
    with site_of(lab, tmp_path) as site:
        with pytest.raises(NoPermission, match=r"Global\.ManageCustomFields"):
            rotate_init(LEASED, site)
        with pytest.raises(Refused, match="not set up"):
            rotate_night(LEASED, site, apply=True)
        assert effects(lab) == []
    authority = lab.world.authority
    authority.permissions.clear()
    authority.permit(lab.username, authority.add_role("once", ("Global.ManageCustomFields", *MAKES)))
    with site_of(lab, tmp_path) as site:
        assert rotate_init(LEASED, site).made
    authority.permissions.clear()
    night_account(lab, NIGHT_ROLES)
    lock = next(vm for vm in lab.world.by_type("VirtualMachine") if vm.name == LOCK)
    authority.permit(lab.username, authority.add_role("lock", ("VirtualMachine.Config.AdvancedConfig",)), lock.moid)
    with site_of(lab, tmp_path) as site:
        assert rotate_night(LEASED, site, apply=True).exit_code == 0


@pytest.mark.long
def test_what_was_made_before_a_refusal_is_said(lab: SimServer, tmp_path: Path) -> None:
    authority = lab.world.authority
    authority.permit(lab.username, authority.add_role("half", ("Global.ManageCustomFields",)))
    with site_of(lab, tmp_path) as site:
        with pytest.raises(PartlyDone, match=r"created before that: custom attribute gpuops\.rotation$"):
            rotate_init(LEASED, site)
        authority.permissions.clear()
        report = rotate_init(LEASED, site)
        assert (report.undefined, report.made) == ((), True)


@pytest.mark.long
@pytest.mark.parametrize("method", ["AddCustomFieldDef", "CreateVM_Task"])
@pytest.mark.parametrize("fault", ["T1", "T2"])
def test_a_lost_reply_is_looked_at_and_nothing_is_made_twice(
    lab: SimServer, tmp_path: Path, method: str, fault: str
) -> None:
    """T1: the request did not arrive. T2: it was executed, and its reply was lost."""
    with site_of(lab, tmp_path) as site:
        for rule in rules_of(fault, {"method": method, "times": 1}):
            lab.world.injector.add(rule)
        rotate_init(LEASED, site)
        with lab.world.lock:
            lab.world.clock.advance(5)
        rotate_init(LEASED, site)
        assert rotate_init(LEASED, site).complete
    assert sorted(effects(lab)) == ["AddCustomFieldDef", "CreateVM_Task"]


@pytest.mark.parametrize(("line", "before"), [point[1:] for point in POINTS], ids=[point[0] for point in POINTS])
def test_a_lock_vm_whose_request_is_cut_off_is_made_once_by_the_same_call(
    lab: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: Kind, before: bool
) -> None:
    with site_of(lab, tmp_path) as site:
        cut_off(lambda: rotate_init(LEASED, site), "CreateVm", line, monkeypatch, before=before)
        rotate_init(LEASED, site)
        assert rotate_init(LEASED, site).complete
        with site.journal_to_read(site.vcenter.uuid) as journal:
            assert journal is not None and journal.open_runs((INIT,)) == ()
    assert effects(lab) == ["AddCustomFieldDef", "CreateVM_Task"]


@pytest.mark.long
def test_where_no_host_can_have_it_is_refused(lab: SimServer, tmp_path: Path) -> None:
    for host in lab.world.by_type("HostSystem"):
        host.state.in_maintenance = True
        host.runtime_changed()
    with site_of(lab, tmp_path) as site, pytest.raises(Refused, match="no connected host sees a datastore"):
        rotate_init(LEASED, site)
    assert effects(lab) == []


@pytest.mark.long
def test_a_lock_vm_with_snapshots_is_named_by_init_and_doctor(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path) as site:
        rotate_init(LEASED, site)
        assert rotate_night(LEASED, site, apply=True).exit_code == 0
        assert rotate_day(LEASED, site, apply=True).exit_code == 0
        assert rotate_init(LEASED, site).lock_vm_snapshots == 0
        assert [finding for finding in doctor(site, Scope()).findings if finding.subject == LOCK] == []
        with lab.world.lock:
            [vm] = [vm for vm in lab.world.by_type("VirtualMachine") if vm.name == LOCK]
            snapshots.take(vm, "backup", "", memory=False, make=VirtualMachineSnapshot)
        assert "warning: gpuops-lock has 1 snapshot: a revert would set back" in render_setup(rotate_init(LEASED, site))
        [finding] = [finding for finding in doctor(site, Scope()).findings if finding.subject == LOCK]
        assert finding.severity is Severity.WARNING
        assert finding.reason.startswith("lock VM: has 1 snapshot: a revert would set back its lease number")
        assert finding.fix == "delete its snapshots, and exclude it from backups that make them"


def render_setup(setup: Setup) -> str:
    return plain(setup_text(setup))
