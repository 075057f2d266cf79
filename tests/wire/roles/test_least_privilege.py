"""Roles: what each account needs, and that what a login cannot see is unknown, never free, off or idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from gpuops.api import Site, rotate_day, rotate_night, run
from gpuops.clock import wall_clock
from gpuops.config.policy import load_policy
from gpuops.config.role_file import load_roles
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import ASSIGN_TO_POOL
from gpuops.plan.core.plan import Report
from gpuops.plan.core.privileges import EDIT_CLUSTER, HOT_MOVE, needed_privileges
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.plan.doctor.examination import WANTED_ON_HOSTS
from gpuops.plan.hosts.change.rolling_plan import MAINTENANCE
from gpuops.plan.vm.attach import Attach
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import NO_ACCESS, READ_ONLY
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
POLICY = Path(__file__).resolve().parents[3] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"
VIEW_ONLY: Final = -3
DESKTOPS: Final = frozenset({"vdi-07", "vdi-08", "vdi-09", "vdi-10"})

ROLES: Final = {
    role.name: role
    for name in ("night", "attach", "host-settings")
    for role in load_roles(TEMPLATES / "roles" / f"{name}.yaml")
}
NIGHT_ROLES: Final[Mapping[str, frozenset[str]]] = {
    "vdi": ROLES["gpuops night desktops"].privileges,
    "ml": ROLES["gpuops night ML"].privileges,  # its Resource.ColdMigrate: for a VM that the policy lets relocate
}
"""The night account: read-only everywhere, and by folder what it does there. The marker is defined by an administrator
once (Global.ManageCustomFields). Not needed: any configuration of a VM or host, Reset, AnswerQuestion, migration of a
running VM."""


def place(server: SimServer, name: str) -> str:
    """The moid of the folder, host, datastore or cluster of that name."""
    kinds = ("Folder", "HostSystem", "Datastore", "ClusterComputeResource")
    [moid] = [entity.moid for kind in kinds for entity in server.world.by_type(kind) if entity.display_name == name]
    return str(moid)


def night_account(server: SimServer, roles: Mapping[str, Iterable[str]] = NIGHT_ROLES, *, defined: bool = True) -> None:
    authority = server.world.authority
    authority.permit(server.username, READ_ONLY)
    for folder, privileges in roles.items():
        authority.permit(server.username, authority.add_role(f"{folder} at night", privileges), place(server, folder))
    if defined:
        server.world.custom_fields.define("gpuops.rotation")


@contextmanager
def site_of(server: SimServer, state_dir: Path) -> Iterator[Site]:
    with Connection(target_of(server)) as vcenter:
        yield Site(vcenter, state_dir, wall_clock)


def effects(server: SimServer) -> list[str]:
    return [change.method for change in server.world.ledger]


def suspended_names(server: SimServer) -> set[str]:
    return {change.name for change in server.world.ledger if change.after.get("power") == "suspended"}


def test_a_night_and_a_morning_under_the_minimal_role(lab: SimServer, tmp_path: Path) -> None:
    night_account(lab)
    with site_of(lab, tmp_path) as site:
        assert rotate_night(load_policy(POLICY), site, apply=True).exit_code == 0
        assert rotate_day(load_policy(POLICY), site, apply=True).exit_code == 0
    assert suspended_names(lab) == DESKTOPS
    assert {change.name for change in lab.world.ledger if change.before.get("power") == "suspended"} == DESKTOPS


@pytest.mark.parametrize(
    ("folder", "privilege"),
    [(folder, privilege) for folder, privileges in NIGHT_ROLES.items() for privilege in sorted(privileges)],
)
def test_each_privilege_of_the_minimal_role_is_needed(
    lab: SimServer, tmp_path: Path, folder: str, privilege: str
) -> None:
    """Refused at dusk with nothing changed, those of the morning too: a desktop that cannot be resumed is not taken."""
    night_account(lab, {**NIGHT_ROLES, folder: NIGHT_ROLES[folder] - {privilege}})
    with site_of(lab, tmp_path) as site:
        night = rotate_night(load_policy(POLICY), site, apply=True)
        assert night.exit_code == 3
        assert all(privilege in rejection.rule for rejection in night.plan.rejections)
        assert effects(lab) == []


def test_who_may_not_define_the_marker_is_told_before_the_night(lab: SimServer, tmp_path: Path) -> None:
    night_account(lab, defined=False)
    with site_of(lab, tmp_path) as site:
        report = rotate_night(load_policy(POLICY), site, apply=True)
        assert report.exit_code == 3
        assert {rejection.rule for rejection in report.plan.rejections} == {
            "this login lacks Global.ManageCustomFields"
        }
        assert {rejection.hint for rejection in report.plan.rejections} == {
            "run `gpuops rotate init --policy FILE` once with a login that may create the attribute gpuops.rotation"
        }
        assert effects(lab) == []


def attach_account(server: SimServer, privileges: Iterable[str]) -> None:
    authority = server.world.authority
    authority.permit(server.username, READ_ONLY)
    authority.permit(server.username, authority.add_role("attach", privileges), place(server, "ml"))


ATTACHED: Final = {
    "a vGPU": Attach("ml-07", profile="a100-3-20c"),
    "another vGPU": Attach("ml-01", replace="a100-3-20c", profile="a100-2-10c"),
}


@pytest.mark.parametrize("request_", ATTACHED.values(), ids=ATTACHED)
def test_the_attach_role_is_enough(lab: SimServer, tmp_path: Path, request_: Attach) -> None:
    attach_account(lab, ROLES["gpuops attach"].privileges)
    with site_of(lab, tmp_path) as site:
        assert run(request_, site, apply=True).exit_code == 0
    assert effects(lab) == ["ReconfigVM_Task"]


def test_without_one_of_its_privileges_an_attach_is_refused_before_it_begins(lab: SimServer, tmp_path: Path) -> None:
    attach_account(lab, ROLES["gpuops attach"].privileges - {"VirtualMachine.Config.AddRemoveDevice"})
    with site_of(lab, tmp_path) as site:
        report = run(ATTACHED["a vGPU"], site, apply=True)
    assert report.exit_code == 3
    assert "VirtualMachine.Config.AddRemoveDevice" in str(report.plan.rejections)
    assert effects(lab) == []


def test_the_roles_hold_what_steps_may_need_and_nothing_that_none_does() -> None:
    """Every privilege that a plan can ask for is in a role, and every one in a role can be asked for."""
    change = VmChange(
        remove=(1,), replace_profile=((1, "x"),), extra_config={"a": "b"}, memory_locked=True, cpu_hot_add=False
    )
    vm_steps: list[Step] = [
        SuspendVm("vm"), ResumeVm("vm"), PowerOnVm("vm"), PowerOffVm("vm"), ShutDownGuest("vm"), RelocateVm("vm", "h"),
        SetAttribute("vm", "a", "b"), RunInGuest("vm", "/x"), ReconfigureVm("vm", change),
    ]  # fmt: skip
    needed = (
        {privilege for privileges in needed_privileges(vm_steps).values() for privilege in privileges}
        | EDIT_CLUSTER
        | WANTED_ON_HOSTS
    )
    needed |= {MAINTENANCE} | HOT_MOVE | ASSIGN_TO_POOL  # of reboots one after another; of moves between clusters
    assert {privilege for role in ROLES.values() for privilege in role.privileges} == needed


def read(server: SimServer) -> Inventory:
    with Connection(target_of(server)) as vcenter:
        return vcenter.inventory()


def test_a_read_only_login_sees_all_and_changes_nothing(lab: SimServer, tmp_path: Path) -> None:
    everything = read(lab)
    lab.world.authority.permit(lab.username, READ_ONLY)
    inventory = read(lab)
    assert (inventory.hosts, inventory.vms.keys(), inventory.datastores) == (
        everything.hosts, everything.vms.keys(), everything.datastores,
    )  # fmt: skip
    with site_of(lab, tmp_path) as site:
        assert run(Attach("ml-07", profile="a100-3-20c"), site, apply=True).exit_code == 3
        assert rotate_night(load_policy(POLICY), site, apply=True).exit_code == 3
    assert effects(lab) == []


def test_what_a_login_may_not_read_is_named_and_unknown(lab: SimServer) -> None:
    lab.world.authority.permit(lab.username, READ_ONLY)
    lab.world.authority.permit(lab.username, VIEW_ONLY, place(lab, "esx-01.lab"))
    lab.world.authority.permit(lab.username, VIEW_ONLY, place(lab, "vdi"))
    inventory = read(lab)
    host, vm = inventory.find_host("esx-01"), inventory.find_vm("vdi-06")
    assert {"runtime.connectionState", "config.graphicsInfo", "hardware.memorySize"} <= set(host.unreadable)
    assert (host.connected, host.in_maintenance, host.memory_mib, host.profiles) == (None, None, None, None)
    assert {"runtime.powerState", "config.template", "rootSnapshot"} <= set(vm.unreadable)
    assert (vm.power, vm.host, vm.template, vm.snapshots, vm.devices) == (None, None, None, None, None)
    assert vm.path == "/lab-dc/vm/vdi/vdi-06", "names need System.View alone"


HIDDEN: Final[Mapping[str, tuple[str, int]]] = {
    "desktops out of sight": ("vdi", NO_ACCESS),
    "desktops by name alone": ("vdi", VIEW_ONLY),
    "their host out of sight": ("esx-02.lab", NO_ACCESS),
    "their host by name alone": ("esx-02.lab", VIEW_ONLY),
    "their datastore out of sight": ("lab-ds-1", NO_ACCESS),
    "their datastore by name alone": ("lab-ds-1", VIEW_ONLY),
}


@pytest.mark.parametrize(
    "hidden",
    mostly_long(HIDDEN, ["desktops by name alone", "their host out of sight", "their datastore by name alone"]),
)
def test_a_desktop_of_which_something_is_hidden_is_not_taken(lab: SimServer, tmp_path: Path, hidden: str) -> None:
    """Every privilege elsewhere: only not knowing keeps them from being taken, and their GPU from being given away.

    A night whose pools have no desktop in sight is refused.
    """
    name, role = HIDDEN[hidden]
    lab.world.authority.permit(lab.username, -1)
    lab.world.authority.permit(lab.username, role, place(lab, name))
    with site_of(lab, tmp_path) as site:
        refused = hidden == "desktops out of sight"
        assert rotate_night(load_policy(POLICY), site, apply=True).exit_code == (3 if refused else 0)
    assert suspended_names(lab) == set()
    started = {change.name for change in lab.world.ledger if change.after.get("power") == "poweredOn"}
    assert "ml-09" not in started, "it needs their GPU"


@pytest.mark.parametrize("role", [NO_ACCESS, VIEW_ONLY])
def test_a_gpu_whose_users_are_hidden_is_not_free(lab: SimServer, tmp_path: Path, role: int) -> None:
    lab.world.authority.permit(lab.username, -1)
    lab.world.authority.permit(lab.username, role, place(lab, "vdi"))
    with site_of(lab, tmp_path) as site:
        report = run(Attach("ml-07", profile="a40-12q"), site, apply=True)
    assert report.exit_code == 3
    assert any("what runs on it is not known" in rejection.rule for rejection in report.plan.rejections)
    assert effects(lab) == []


@pytest.mark.parametrize("role", [NO_ACCESS, VIEW_ONLY])
def test_a_host_that_is_hidden_takes_nobody(
    lab: SimServer, tmp_path: Path, role: int, attempt: Callable[[Site, Attach], Report | str]
) -> None:
    lab.world.authority.permit(lab.username, -1)
    lab.world.authority.permit(lab.username, role, place(lab, "esx-01.lab"))
    with site_of(lab, tmp_path) as site:
        report_or_error = attempt(site, Attach("ml-07", profile="a40-48c"))
    assert not isinstance(report_or_error, Report) or report_or_error.exit_code == 3
    assert effects(lab) == []


@pytest.fixture
def attempt() -> Callable[[Site, Attach], Report | str]:
    """The report, or the words of the usage error."""
    from gpuops.errors import UsageError

    def try_request(site: Site, request: Attach) -> Report | str:
        try:
            return run(request, site, apply=True)
        except UsageError as error:
            return str(error)

    return try_request
