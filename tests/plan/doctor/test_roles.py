"""`doctor --roles`: what a login lacks of its roles and has beyond them is named, with the place; else nothing is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest

from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import IMPLIED, RoleWish
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.doctor.login_privileges import compare_with_roles

SUSPEND, ON, OFF, MARK = "V.Interact.Suspend", "V.Interact.PowerOn", "V.Interact.PowerOff", "Global.SetCustomField"
EDIT, POOL, SETTINGS = "Host.Inventory.EditCluster", "Resource.AssignVMToPool", "Host.Config.Settings"
DESKTOPS: Final = RoleWish("desktops", "folders of desktops", frozenset({SUSPEND, ON, MARK}))
ML: Final = RoleWish("ml", "folders of the queue", frozenset({ON, OFF, MARK}))
DRS: Final = RoleWish("drs", "clusters", frozenset({EDIT}))
HOSTS: Final = RoleWish("hosts", "hosts with GPUs", frozenset({SETTINGS}))
NIGHT: Final = (DESKTOPS, ML, DRS)
RIGHT: Final = {
    "group-d1": frozenset[str](),
    "vm-1": DESKTOPS.privileges,
    "vm-2": DESKTOPS.privileges,
    "vm-3": ML.privileges,
    "host-1": frozenset[str](),
    "c-1": DRS.privileges,
}
SEEN: Final = Inventory(
    "vc",
    "8.0.3.0",
    datetime(2026, 11, 2, tzinfo=UTC),
    hosts={"host-1": Host("host-1", "esx-1")},
    vms={
        "vm-1": Vm("vm-1", "desk-1", path="/dc/vm/vdi/desk-1"),
        "vm-2": Vm("vm-2", "desk-2", path="/dc/vm/vdi/desk-2"),
        "vm-3": Vm("vm-3", "train", path="/dc/vm/ml/train"),
    },
    clusters={"c-1": Cluster("c-1", "gpus")},
    user="night@vsphere.local",
)


def role_lines(wishes: tuple[RoleWish, ...] = NIGHT, **granted: frozenset[str]) -> list[str]:
    by_ref = {ref.replace("_", "-"): privileges for ref, privileges in granted.items()}
    everything = {ref: privileges | IMPLIED for ref, privileges in {**RIGHT, **by_ref}.items()}
    return [
        f"{role_finding.subject}: {role_finding.reason}"
        for role_finding in compare_with_roles(wishes, everything, "group-d1", SEEN)
    ]


def test_a_login_that_has_its_roles_and_no_more_has_no_findings() -> None:
    assert role_lines() == []


@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        (
            {"vm_1": DESKTOPS.privileges - {ON}, "vm_2": DESKTOPS.privileges - {ON}},
            [f"/dc/vm/vdi: this login lacks {ON} of role desktops"],
        ),
        ({"vm_2": DESKTOPS.privileges - {ON}}, [f"desk-2: this login lacks {ON} of role desktops"]),
        (
            {"vm_3": frozenset()},
            [f"ml: this login has this role on no VM; on /dc/vm/vdi it lacks {OFF}"],
        ),
        ({"c_1": frozenset()}, ["drs: this login has this role on no cluster"]),
        (
            {"vm_3": ML.privileges | {"V.Inventory.Delete"}},
            ["/dc/vm/ml: this login also has V.Inventory.Delete, which no role of the file gives it there"],
        ),
        (
            {"vm_1": DESKTOPS.privileges | {"V.Interact.Reset"}, "vm_2": DESKTOPS.privileges | {"V.Interact.Reset"}},
            ["/dc/vm/vdi: this login also has V.Interact.Reset, which no role of the file gives it there"],
        ),
        (
            {"host_1": frozenset({SETTINGS})},
            [f"esx-1: this login also has {SETTINGS}, which no role of the file gives it there"],
        ),
        (
            {"group_d1": frozenset({"A.B"}), "vm_1": DESKTOPS.privileges | {"A.B"}, "host_1": frozenset({"A.B"})},
            ["the whole vCenter: this login also has A.B, which no role of the file gives it there"],
        ),
        ({"host_1": DESKTOPS.privileges, "vm_1": DESKTOPS.privileges | {EDIT}}, []),
    ],
    ids=[
        "a folder", "one VM of a folder", "a role that is nowhere", "no cluster", "an ML VM", "a desktop", "a host",
        "everywhere", "what is propagated",
    ],
)  # fmt: skip
def test_what_is_missing_and_what_is_surplus_is_named_with_its_place(
    granted: dict[str, frozenset[str]], expected: list[str]
) -> None:
    assert role_lines(NIGHT, **granted) == expected


def test_what_belongs_to_another_role_is_surplus_where_that_one_is_not() -> None:
    privileges = DESKTOPS.privileges | {"V.Config.X"}
    wishes = (*NIGHT, RoleWish("lease", "the lock VM", frozenset({"V.Config.X", "V.Config.Y"})))
    lines = role_lines(wishes, vm_1=privileges, vm_2=privileges)
    assert lines[-1] == "/dc/vm/vdi: this login also has V.Config.X, which no role of the file gives it there"
    assert lines[0].startswith("lease: this login has this role on no VM; on /dc/vm/vdi it lacks V.Config.Y")


def test_a_role_for_hosts_is_looked_for_on_hosts() -> None:
    assert role_lines((*NIGHT, HOSTS)) == ["hosts: this login has this role on no host"]
    assert role_lines((*NIGHT, HOSTS), host_1=HOSTS.privileges) == []
    cluster = RoleWish("pools", "clusters", frozenset({POOL}))
    assert role_lines((*NIGHT, cluster), c_1=DRS.privileges | {POOL}) == []


def test_what_is_not_told_is_a_finding_and_no_clean_bill() -> None:
    [silent] = compare_with_roles(NIGHT, {}, "group-d1", SEEN)
    assert (silent.subject, silent.severity.value) == ("night@vsphere.local", "warning")
    partly = {ref: privileges for ref, privileges in RIGHT.items() if ref != "vm-1"}
    [untold] = compare_with_roles(NIGHT, partly, "group-d1", SEEN)
    assert untold.reason == "vCenter does not report the privileges of this login on desk-1"


def test_many_are_counted() -> None:
    many = frozenset(f"X.P{number}" for number in range(20))
    [line] = role_lines(vm_3=ML.privileges | many)
    assert line.endswith("X.P0, X.P1, X.P10, X.P11, X.P12, X.P13 and 14 more, which no role of the file gives it there")
