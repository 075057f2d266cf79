"""vCenter 9.0 over the wire: whose VMs are left alone by every verb, and what of its slots is reserved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuops.api import Site, place, rotate_night, run
from gpuops.config.policy import load_policy
from gpuops.errors import Refused
from gpuops.execute.site import catalog_of
from gpuops.model.vcenter.host_settings import Displacement
from gpuops.model.vcenter.inventory import Inventory, ProfileCapacity
from gpuops.model.vcenter.vm import ManagedBy
from gpuops.model.workloads.workload import Workload
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.core.plan import Report, Request
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.examination import examine
from gpuops.plan.hosts.change.emptying import empty_hosts
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.vm_events import hand_over
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.reading import collect
from gpuops.vsphere.session import Session
from tests.wire.conftest import target_of
from tests.wire.placement.test_headroom import find_entity

NOW = datetime(2026, 11, 2, 18, tzinfo=UTC)
EIGHT = "nvidia_a40-8q"
KUBE = "is managed by the vSphere Supervisor (VM Service): changed through Kubernetes (kubectl, in its namespace)"


@pytest.fixture
def server() -> Iterator[SimServer]:
    with SimServer(build("supervisor")) as running:
        yield running
        assert running.world.bugs == []


@pytest.fixture
def site(server: SimServer, tmp_path: Path) -> Iterator[Site]:
    with Connection(target_of(server)) as connection:
        yield Site(connection, tmp_path, lambda: NOW)


def read(server: SimServer, *, json: bool = False) -> Inventory:
    with Session(target_of(server)) as session:
        if json:
            session.read_over_vi_json(alone=True)
        return collect.inventory(session)


@pytest.mark.long
@pytest.mark.parametrize("json", [False, True], ids=["SOAP", "VI/JSON"])
def test_whose_a_vm_is_comes_with_the_bulk_read(server: SimServer, *, json: bool) -> None:
    inventory = read(server, json=json)
    assert {vm.name: vm.managed_by for vm in inventory.vms.values() if vm.managed_by} == {
        **{f"kube-0{number}": ManagedBy("com.vmware.vcenter.wcp", "VirtualMachine") for number in (1, 2, 3)},
        **{f"vCLS-{number}": ManagedBy("com.vmware.vim.eam", "cluster-agent") for number in (1, 2)},
        "edge-01": ManagedBy("com.vmware.nsx.management.nsxt"),
    }


VERBS: list[Request] = [
    Attach("kube-03", profile="a40-12q", power=PowerPolicy.ON),
    Attach("kube-01", profile="a40-8q", count=2, power=PowerPolicy.CYCLE),
    Detach("kube-01", all=True, power=PowerPolicy.CYCLE),
    Detach("kube-03", all=True),
    Attach("edge-01", profile="a40-8q", power=PowerPolicy.CYCLE),
]


@pytest.mark.long
@pytest.mark.parametrize("request_", VERBS, ids=str)
def test_no_verb_touches_a_vm_of_another_product(server: SimServer, site: Site, request_: Request) -> None:
    report = run(request_, site, apply=True)
    assert (report.exit_code, report.plan.steps) == (3, ())
    manager = KUBE if "kube" in str(request_) else "is managed by NSX: changed through NSX Manager"
    assert manager in [rejection.rule for rejection in report.plan.rejections]
    assert list(server.world.ledger) == []


@pytest.mark.long
def test_a_vm_that_is_handed_over_after_the_plan_is_left_alone(server: SimServer, site: Site) -> None:
    def consent(report: Report) -> None:
        with server.world.changed:
            hand_over(find_entity(server, "VirtualMachine", "desk-06"), Rule(Effect.HAPPEN))

    report = run(Detach("desk-06", all=True, power=PowerPolicy.CYCLE), site, apply=True, consent=consent)
    assert report.exit_code != 0
    reasons = {
        *(outcome.reason for outcome in report.outcomes),
        *(rejection.rule for rejection in report.plan.rejections),
    }
    assert any(KUBE in reason for reason in reasons), reasons
    assert [change.method for change in server.world.ledger if change.operation_id.startswith("gpuops-")] == []


def test_a_host_with_such_vms_is_not_emptied(site: Site) -> None:
    inventory = site.vcenter.inventory()
    host = inventory.find_host("esx-01.sup")
    emptying = empty_hosts([host], Displacement.POWER_OFF, inventory, catalog_of(inventory))
    assert sorted(str(rejection).split(":")[1].split()[0] for rejection in emptying.rejections) == [
        "kube-01",
        "kube-02",
    ]
    assert all(KUBE in rejection.rule for rejection in emptying.rejections)
    assert {displaced.vm.name for displaced in emptying.away[host.ref]} == {f"desk-0{n}" for n in range(1, 6)} | {
        "vCLS-1",
        "vCLS-2",
    }


@pytest.mark.long
def test_no_night_begins_on_a_lock_vm_of_another_product(server: SimServer, site: Site, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "version: 1\nname: nine\nwindows: any\nlock_vm: kube-03\nmarker: gpuops.rotation\n"
        "pools: [{name: desks, select: {folder: desks}, idle: {cpu_below_mhz: 500}, parked: true, owner: none}]\n"
        "ml: {queue: [{vm: ml-01}]}\n",
        encoding="utf-8",
    )
    with pytest.raises(Refused, match="lock_vm: kube-03 is managed by the vSphere Supervisor"):
        rotate_night(load_policy(file), site, apply=True)
    assert list(server.world.ledger) == []


def test_what_is_reserved_is_read_and_not_free(server: SimServer, site: Site) -> None:
    inventory = site.vcenter.inventory()
    assert inventory.reservations is not None
    place = inventory.find_host("esx-01.sup").cluster or ""
    assert inventory.reservations.capacities == (
        ProfileCapacity(EIGHT, place, consumed=10, maximum=24, remaining=14, unused_reservation=4),
        ProfileCapacity("nvidia_a40-48c", place, consumed=0, maximum=4, remaining=1, unused_reservation=0),
    )
    [part] = capacity(inventory, catalog_of(inventory)).now.parts
    slots = part.fits[EIGHT].slots
    assert (slots.at_least, slots.at_most, slots.because) == (10, 10, f"4 of {EIGHT} reserved, not free")
    assert not [line for line in examined_of(inventory) if EIGHT in line], "both count the same"


def test_the_solver_promises_no_reserved_slot(site: Site) -> None:
    requests = tuple(Workload(f"render-{number:02}", 2, 8192, EIGHT) for number in range(14))
    in_turn, at_once = (place(Place(requests, optimize=optimize), site) for optimize in (False, True))
    assert (len(in_turn.placed), len(at_once.placed)) == (10, 10), "14 are free, of which 4 are reserved"


def examined_of(inventory: Inventory) -> list[str]:
    examination = examine(inventory, catalog_of(inventory), Scope(), {})
    return [f"{finding.subject}: {finding.reason}" for finding in examination.findings]


@pytest.mark.long
def test_a_start_that_would_take_of_it_is_refused_before_vcenter_does(server: SimServer, site: Site) -> None:
    assert run(Attach("ml-01", profile="a40-48c", power=PowerPolicy.ON), site, apply=True).exit_code == 0
    for number in (6, 7, 8):
        desk = Detach(f"desk-0{number}", all=True, power=PowerPolicy.OFF)
        assert run(desk, site, apply=True).exit_code == 0
    assert run(Attach("ml-02", profile="a40-48c", power=PowerPolicy.ON), site, apply=True).exit_code == 0
    # five are left, and four of them reserved
    report = run(Attach("desk-01", profile="a40-8q", count=3, power=PowerPolicy.CYCLE), site, apply=False)
    [refused] = [rejection for rejection in report.plan.rejections if "reserved" in rejection.rule]
    assert str(refused).startswith(f"esx-01.sup: 4 of {EIGHT} are reserved for other VMs in sup-cluster, and too few")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule(Effect.FAULT, method="DirectPathProfileManagerList", fault="NoPermission", times=None), "List"),
        (Rule(Effect.FAULT, method="DirectPathProfileManagerQueryCapacity", fault="InvalidArgument", times=None), "Qu"),
    ],
    ids=["the list", "the capacity"],
)
def test_what_vcenter_does_not_tell_is_unknown(server: SimServer, site: Site, rule: Rule, reason: str) -> None:
    with server.world.changed:
        server.world.injector.add(rule)
    inventory = site.vcenter.inventory()
    assert inventory.reservations is not None and inventory.reservations.capacities == ()
    unknown = "sup-cluster: what is reserved for others is not known: DirectPathProfileManager"
    report = run(Attach("ml-01", profile="a40-48c", power=PowerPolicy.ON), site, apply=False)
    assert [warning for warning in report.plan.warnings if warning.startswith(unknown + reason)]
    [part] = capacity(inventory, catalog_of(inventory)).now.parts
    assert (part.fits[EIGHT].slots.at_least, part.fits[EIGHT].slots.at_most) == (0, 14)
    assert [line for line in examined_of(inventory) if "are unknown: DirectPathProfileManager" in line]


@pytest.mark.long
def test_doctor_names_both_counts(server: SimServer, site: Site) -> None:
    """A GPU that fails between two reads: vCenter does not count it, the snapshot still shows it."""
    inventory = site.vcenter.inventory()
    assert inventory.reservations is not None
    first_capacity, second_capacity = inventory.reservations.capacities

    fewer = replace(
        inventory.reservations, capacities=(replace(first_capacity, remaining=8, maximum=18), second_capacity)
    )
    lines = examined_of(replace(inventory, reservations=fewer))
    assert f"sup-cluster: {EIGHT}: vCenter reports room for 8 of at most 18, gpuops for 14 of at most 24" in lines


@pytest.mark.long
@pytest.mark.parametrize("version", ["8.0.2.0", "8.0.3.0"])
def test_an_older_vcenter_is_not_asked(version: str) -> None:
    with SimServer(build("supervisor", api_version=version)) as older:
        inventory = read(older)
        assert (inventory.reservations, inventory.find_vm("kube-01").managed_by is not None) == (None, True)
        assert older.world.bugs == []
