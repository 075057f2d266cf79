"""What a login lacks for each verb: named by privilege and place, and nothing that no role template grants."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from gpuops.config.role_file import load_roles
from gpuops.model.vcenter.host import Cluster, Datastore, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import ASSIGN_TO_POOL, ObjectKind
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.doctor.login_privileges import (
    MOST_VMS,
    VERBS,
    Verb,
    compare_with_commands,
    objects_to_ask,
    privileges_to_ask,
)

TEMPLATES: Final = Path(__file__).resolve().parents[3] / "templates"
ASKED: Final = privileges_to_ask()
SEEN: Final = Inventory(
    "vc",
    "8.0.3.0",
    datetime(2026, 11, 2, tzinfo=UTC),
    hosts={"h": Host("h", "esx-1")},
    clusters={"c": Cluster("c", "gpus")},
    datastores={"d": Datastore("d", "nfs")},
    vms={
        "a": Vm("a", "desk-1", path="/dc/vm/vdi/desk-1"),
        "b": Vm("b", "train", path="/dc/vm/ml/train"),
        "t": Vm("t", "golden", path="/dc/vm/ml/golden", template=True),
    },
)
OF_TEMPLATE: Final = "job run, VMs of a template"
EVERYTHING: Final = {
    "a": ASKED[ObjectKind.VM],
    "b": ASKED[ObjectKind.VM],
    "t": ASKED[ObjectKind.TEMPLATE],
    "h": ASKED[ObjectKind.HOST],
    "c": ASKED[ObjectKind.CLUSTER],
    "d": ASKED[ObjectKind.DATASTORE],
}


def lacking(without: dict[str, set[str]]) -> list[tuple[str, str, tuple[str, ...], frozenset[str]]]:
    """(verb, kind, places, privileges) of everything that is lacking."""
    granted = {ref: privileges - without.get(ref, set()) for ref, privileges in EVERYTHING.items()}
    return [
        (verb.verb, need.kind.value, need_of_verb.places, need_of_verb.privileges)
        for verb in compare_with_commands(granted, SEEN)
        for need in verb.needs
        for need_of_verb in need.lacking
    ]


def test_who_has_everything_lacks_nothing() -> None:
    assert lacking({}) == []
    assert all(verb.allowed for verb in compare_with_commands(EVERYTHING, SEEN))


@pytest.mark.parametrize(
    ("ref", "privilege", "verbs", "kind", "place"),
    [
        ("a", "VirtualMachine.Interact.Suspend", ["rotate night, day"], "VM", "/dc/vm/vdi"),
        ("b", "VirtualMachine.Config.EditDevice", ["attach, detach"], "VM", "/dc/vm/ml"),
        ("b", "VirtualMachine.GuestOperations.Modify", ["job run"], "VM", "/dc/vm/ml"),
        ("b", "Resource.HotMigrate", ["--reboot rolling, change", "defrag"], "VM", "/dc/vm/ml"),
        ("h", "Host.Config.Maintenance", ["--reboot rolling, change"], "host", "esx-1"),
        ("h", "Host.Config.Settings", ["scheduler, mode, passthrough", "--reboot rolling, change"], "host", "esx-1"),
        ("c", "Host.Inventory.EditCluster", ["rotate, drs_override"], "cluster", "gpus"),
        (
            "c",
            "Resource.AssignVMToPool",
            ["attach --move cold", OF_TEMPLATE, "new VM from a template"],
            "cluster",
            "gpus",
        ),
        (
            "t",
            "VirtualMachine.Provisioning.DeployTemplate",
            [OF_TEMPLATE, "new VM from a template"],
            "template",
            "/dc/vm/ml",
        ),
        ("d", "Datastore.AllocateSpace", [OF_TEMPLATE, "new VM from a template"], "datastore", "nfs"),
    ],
)
def test_what_is_lacking_is_named_with_its_place(
    ref: str, privilege: str, verbs: list[str], kind: str, place: str
) -> None:
    assert lacking({ref: {privilege}}) == [(verb, kind, (place,), frozenset({privilege})) for verb in verbs]


def test_what_vcenter_does_not_tell_of_is_neither_allowed_nor_lacking() -> None:
    granted = {ref: privileges for ref, privileges in EVERYTHING.items() if ref != "h"}
    verbs = {verb.verb: verb for verb in compare_with_commands(granted, SEEN)}
    (need,) = verbs["scheduler, mode, passthrough"].needs
    assert (need.untold, need.allowed, need.lacking) == (1, (), ())
    assert not verbs["scheduler, mode, passthrough"].allowed
    assert verbs["attach, detach"].allowed


def test_of_many_vms_each_folder_is_asked() -> None:
    many = {f"x{n}": Vm(f"x{n}", f"desk-{n}", path=f"/dc/vm/vdi/desk-{n}") for n in range(MOST_VMS + 5)}
    refs = objects_to_ask(Inventory("vc", "8.0.3.0", SEEN.taken_at, vms={**many, **SEEN.vms}))[ObjectKind.VM]
    assert len(refs) == MOST_VMS
    assert {"a", "b"} & set(refs) == {"b"}, "vdi has others before it"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.role], ids=lambda verb: verb.name)
def test_the_template_named_grants_what_the_verb_needs(verb: Verb) -> None:
    granted = {privilege for role in load_roles(TEMPLATES / verb.role) for privilege in role.privileges}
    assert {privilege for needed in verb.needs.values() for privilege in needed} - granted == set()


@pytest.mark.parametrize("name", ["attach", "night", "host-settings"])
def test_what_a_template_grants_some_verb_needs(name: str) -> None:
    """But for the lease of nights: its privilege is the policy's lock VM's alone, and attach needs it of VMs too."""
    needed_privileges = {privilege for needed in ASKED.values() for privilege in needed} | ASSIGN_TO_POOL
    assert {
        privilege for role in load_roles(TEMPLATES / "roles" / f"{name}.yaml") for privilege in role.privileges
    } <= needed_privileges
