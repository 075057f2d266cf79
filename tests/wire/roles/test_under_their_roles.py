"""Each account does all its work under the roles of its file, and no privilege of theirs is one too many.

vCenter's stand-in refuses by itself what a role does not grant: with our own question taken away it still says no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.api import Site, configure, doctor, rotate_day, rotate_night, run
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.config.role_file import load_roles
from gpuops.errors import GpuopsError
from gpuops.execute.change import rolling_change
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.host_settings import Displacement, Rolling, SharedType
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.host_findings import Severity
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.vm_blockers import MoveMode, PowerPolicy
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import GuestAccount as Known
from gpuops.sim.state.vm_state import GuestProgram
from gpuops.sim.vcenter.authority import READ_ONLY
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.guests.test_guest_programs import LOGIN
from tests.wire.hosts.clusters import cluster
from tests.wire.hosts.test_change import MIXED
from tests.wire.roles.test_least_privilege import POLICY, ROLES, TEMPLATES

Given = Mapping[str, tuple[str, ...]]
"""Names of roles by the place they are given at."""
Act = Callable[[Site], object]
CAD: Final = """
  - {<<: *direct, name: "cad-{:02}", first: 1, folder: cad, power: "on", cpu_usage_mhz: 60,
     attributes: {gpuops.owner: office}}
  - {<<: *desktop, name: "cad-{:02}", first: 2, count: 1, folder: cad, "on": esx-02.lab}
"""
TEXT: Final = (
    POLICY.read_text(encoding="utf-8")
    .replace(
        "opt_out:",
        """  - name: cad
    parked: true
    select: {name: "cad-*"}
    idle: {cpu_below_mhz: 500}
    floor: 0
    owner: {attribute: gpuops.owner, value: office}
    directpath: shut-down-guest
opt_out:""",
    )
    .replace("ml:\n", "ml:\n  checkpoint: {grace_s: 120, hook: {program: /opt/keep}}\n", 1)
    .replace("    - vm: ml-01\n", "    - vm: ml-01\n    - vm: ml-03\n")
    + "\ndrs_override: manual\nlock_vm: bare\n"
)
ALL_OPTIONS: Final = parse_policy(TEXT, "every option")


def two_clusters(tmp_path: Path) -> World:
    """The lab with a cluster for each host, desktops with a whole GPU and a vGPU, and guests that know a user."""
    text = (files("gpuops.sim") / "scenarios" / "lab.yaml").read_text(encoding="utf-8")
    text = text.replace("      - name: esx-02.lab", "  - name: lab-cluster-2\n    hosts:\n      - name: esx-02.lab")
    path = tmp_path / "lab.yaml"
    path.write_text(
        text.replace("  - {<<: *direct, first: 4,", f"{CAD[1:]}  - {{<<: *direct, first: 4,"), encoding="utf-8"
    )
    world = build(str(path))
    for vm in world.by_type("VirtualMachine"):
        template = replace(
            vm.state.template, login=Known("ml", "Kept4now"), programs=(GuestProgram("/opt/keep", 30.0),)
        )
        vm.state.template = template
        vm.state.cpu_hot_add = vm.name == "ml-07"  # an attachment that wants a NUMA node switches it off
    world.custom_fields.define("gpuops.rotation")
    return world


def hosts_of_a_cluster(tmp_path: Path) -> World:
    """Two hosts with work, and a lock VM for the nights."""
    lock = {"name": "bare", "folder": "locks", "on": "esx-02", "guest": "bare", "cpus": 1, "memory_gib": 1}
    return cluster(2, [*MIXED, {**lock, "disk_gib": 1, "devices": [], "power": "off"}])


def night(site: Site) -> object:
    return rotate_night(ALL_OPTIONS, site, apply=True)


def day(site: Site) -> object:
    return rotate_day(ALL_OPTIONS, site, apply=True)


def attaching(request: Attach | Detach) -> Act:
    return lambda site: run(request, site, apply=True)


def setting(request: Any) -> Act:
    return lambda site: configure(request, site, apply=True)


def rolling(request: Any, vms: Displacement) -> Act:
    return lambda site: rolling_change.roll(
        request, "scheduler set", Rolling(vms=vms), site, apply=True, consent=_agree, told=_nobody
    )


def after_a_night(act: Act) -> Act:
    """The journal remembers a night whose policy names a lock VM: its lease is a change's too."""

    def begin(site: Site) -> object:
        with site.locked_journal(site.vcenter.uuid, alone=True) as journal:
            journal.end(journal.begin("rotate night", policy=TEXT))
        return act(site)

    return begin


def _agree(report: object) -> None:
    """Agree without asking."""


def _nobody(line: str) -> None:
    """Ignore the message."""


@dataclass(frozen=True)
class Duty:
    """What an account is for: where it has which roles, and all that it does there, one after another."""

    world: Callable[[Path], World]
    given: Given
    acts: tuple[Act, ...]
    file: str = ""
    """The file all of whose roles it has."""

    @property
    def privileges(self) -> Iterator[tuple[str, str]]:
        return (
            (place, privilege)
            for place, names in self.given.items()
            for privilege in sorted({privilege for name in names for privilege in ROLES[name].privileges})
        )


DUTIES: Final = {
    "night": Duty(
        two_clusters,
        {
            "vdi": ("gpuops night desktops",),
            "cad": ("gpuops night desktops with DirectPath",),
            "ml": ("gpuops night ML", "gpuops night ML with a hook"),
            "bare": ("gpuops night lease",),
            "lab-cluster": ("gpuops night DRS",),
            "lab-cluster-2": ("gpuops night DRS", "gpuops night ML into other clusters"),
        },
        (night, day),
        "night",
    ),
    "attach": Duty(
        two_clusters,
        {"ml": ("gpuops attach",), "lab-cluster-2": ("gpuops attach, move into other clusters",)},
        (
            attaching(Attach("ml-07", profile="a100-3-20c", numa=NumaPolicy.REQUIRED)),
            attaching(Attach("ml-01", replace="a100-3-20c", profile="a100-2-10c", power=PowerPolicy.ON)),
            attaching(Detach("ml-01", all=True, power=PowerPolicy.CYCLE)),
            attaching(Attach("ml-02", replace="a100-2-10c", profile="a40-8q", host="esx-02", move=MoveMode.COLD)),
        ),
        "attach",
    ),
    "host settings": Duty(
        two_clusters,
        {"esx-01.lab": ("gpuops host settings",)},
        (
            setting(SetScheduler(SchedulerPolicy.EQUAL_SHARE, gpu=("0000:d8:00.0",), host="esx-01.lab")),
            setting(SetMode(default_type=SharedType.SHARED, host="esx-01.lab")),
            setting(SetPassthrough(True, ("3b:00.0",), None, "esx-01.lab")),
        ),
    ),
    "host settings with reboots": Duty(
        hosts_of_a_cluster,
        {
            "c": ("gpuops host settings with reboots",),
            "vdi": ("gpuops host settings, VMs that make way",),
            "bare": ("gpuops host settings, lease",),
        },
        (
            after_a_night(rolling(SetScheduler(SchedulerPolicy.EQUAL_SHARE, host="*"), Displacement.SHUT_DOWN)),
            setting(SetPassthrough(True, ("3b:00.0",), None, "esx-02")),
        ),
    ),
}


def place(world: World, name: str) -> str:
    kinds = ("Folder", "HostSystem", "VirtualMachine", "ClusterComputeResource")
    [moid] = [entity.moid for kind in kinds for entity in world.by_type(kind) if entity.display_name == name]
    return str(moid)


def employ(server: SimServer, duty: Duty, without: tuple[str, str] = ("", "")) -> None:
    """The server's account reads everything, and has the duty's roles where they belong, but for this privilege."""
    authority = server.world.authority
    authority.permit(server.username, READ_ONLY)
    for where, names in duty.given.items():
        granted = {privilege for name in names for privilege in ROLES[name].privileges}
        lessened = granted - ({without[1]} if without[0] == where else set())
        authority.permit(server.username, authority.add_role(where, lessened), place(server.world, where))


def told_by_doctor(server: SimServer, duty: Duty) -> list[str]:
    """What `gpuops doctor --roles` says of this account, beside what it says to anybody."""
    wishes = load_roles(TEMPLATES / "roles" / f"{duty.file}.yaml")
    with Connection(target_of(server)) as vcenter:
        site = Site(vcenter, Path("/nowhere"), wall_clock)
        usual = {(finding.subject, finding.reason) for finding in doctor(site, Scope()).findings}
        findings = doctor(site, Scope(), wishes).findings
        unread = [finding for finding in findings if "some of its settings cannot be read" in finding.reason]
        assert not [finding for finding in unread if finding.severity is not Severity.NOTE]
        return [str(finding) for finding in findings if (finding.subject, finding.reason) not in usual]


def perform_duty(server: SimServer, duty: Duty, state_dir: Path) -> list[Any]:
    """What each of the duty's acts came to: its report, or its error."""
    reports: list[Any] = []
    for act in duty.acts:
        with Connection(replace(target_of(server), guest=LOGIN)) as vcenter:
            try:
                reports.append(act(Site(vcenter, state_dir, wall_clock)))
            except GpuopsError as error:
                reports.append(error)
    return reports


LONG: Final = ("night", "host settings with reboots")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in DUTIES]
)
def test_the_roles_are_enough(name: str, tmp_path: Path) -> None:
    duty = DUTIES[name]
    with SimServer(duty.world(tmp_path)) as server:
        employ(server, duty)
        if duty.file:
            assert told_by_doctor(server, duty) == []
        reports = perform_duty(server, duty, tmp_path / "state")
        assert [getattr(report, "exit_code", None) for report in reports] == [0] * len(duty.acts), reports
        assert server.world.ledger, "there was something to do"
        assert server.world.bugs == []


def error_text(error: Any) -> str:
    return str(error) if isinstance(error, GpuopsError) else ""


def refusals(report: Any) -> str:
    return "\n".join(map(str, getattr(getattr(report, "plan", None), "rejections", ())))


NEEDED: Final = [(name, where, privilege) for name, duty in DUTIES.items() for where, privilege in duty.privileges]


@pytest.mark.long
@pytest.mark.parametrize(("name", "where", "privilege"), NEEDED)
def test_what_is_missing_is_named_before_it_is_missed(name: str, where: str, privilege: str, tmp_path: Path) -> None:
    """By the first act that needs it, which changes nothing then."""
    duty = DUTIES[name]
    with SimServer(duty.world(tmp_path)) as server:
        employ(server, duty, (where, privilege))
        reports = perform_duty(server, duty, tmp_path / "state")
        short = [report for report in reports if privilege in error_text(report) + refusals(report)]
        assert short, reports
        assert {report.exit_code for report in short} == {3}


@pytest.mark.long
@pytest.mark.parametrize(("name", "where", "privilege"), NEEDED)
def test_nothing_works_without_it_though_nobody_asked(
    name: str, where: str, privilege: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With our own question taken away, vCenter itself refuses: no role holds what nothing needs."""
    duty = DUTIES[name]
    for method in ("lacking", "lacking_on_objects"):
        monkeypatch.setattr(Connection, method, lambda *arguments: {})
    monkeypatch.setattr("gpuops.vsphere.writing.host_changes.HostConnection.lacking", lambda *arguments: {})
    with SimServer(duty.world(tmp_path)) as server:
        employ(server, duty, (where, privilege))
        reports = perform_duty(server, duty, tmp_path / "state")
        assert any(getattr(report, "exit_code", None) != 0 for report in reports), f"{privilege} is not needed"


def test_every_role_has_a_duty() -> None:
    assert {name for duty in DUTIES.values() for names in duty.given.values() for name in names} == set(ROLES)


@pytest.mark.long
def test_doctor_names_what_an_account_lacks_and_what_it_has_beyond_its_roles(tmp_path: Path) -> None:
    duty = DUTIES["night"]
    with SimServer(duty.world(tmp_path)) as server:
        employ(server, duty, ("vdi", "VirtualMachine.Interact.Suspend"))
        cluster = place(server.world, "lab-cluster")
        wide = server.world.authority.add_role("wide", {"Host.Inventory.EditCluster", "Host.Inventory.DeleteCluster"})
        server.world.authority.permit(server.username, wide, cluster)
        text = "\n".join(told_by_doctor(server, duty))
    assert "this login lacks VirtualMachine.Interact.Suspend of role gpuops night desktops" in text
    assert "also has Host.Inventory.DeleteCluster" in text
