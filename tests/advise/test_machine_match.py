"""Which VM each machine of a broker is: for certain, perhaps, or not in this vCenter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from gpuops.advise.desktop_sessions import match_machines, read_sessions
from gpuops.model.desktops.broker import BrokerVcenter, DesktopMachine, DesktopSession
from gpuops.model.vcenter.vm import Vm

NOW = datetime(2026, 11, 2, 22, 0, tzinfo=UTC)
HERE, OTHER = "6605D116-d1b5-4810-8e3a-b710b30993da", "11111111-d1b5-4810-8e3a-b710b30993da"
VMS = (
    Vm("vm-1", "a", "/dc/vm/vdi/a"),
    Vm("vm-2", "b", "/dc/vm/one/b"),
    Vm("vm-3", "b", "/dc/vm/two/b"),
    Vm("vm-4", "c/d", "/dc/vm/vdi/c/d"),
)
ONE = (BrokerVcenter("v1", "vc-1", HERE.lower()),)
TWO = (*ONE, BrokerVcenter("v2", "vc-2", OTHER))


def machine(name: str, path: str | None = None, vcenter: str | None = "v1", identity: str = "m") -> DesktopMachine:
    return DesktopMachine(identity, name, "pool", path=path, vcenter=vcenter)


A = machine("a", "/dc/vm/vdi/a")


@dataclass(frozen=True)
class Case:
    machines: tuple[DesktopMachine, ...]
    certain: tuple[str, ...] = ()
    """VMs that are certainly a machine."""
    perhaps: tuple[str, ...] = ()
    """VMs that a session on the first machine keeps."""
    why: str = ""
    """Why the first machine is not found."""
    vcenters: tuple[BrokerVcenter, ...] = ONE


UNTOLD = "the broker does not report the uuid of its vCenter (the account needs VC_CONFIG_VIEW)"
EVERY = tuple(vm.ref for vm in VMS)
CASES: dict[str, Case] = {
    "its path": Case((A,), certain=("vm-1",)),
    "its path in other letter case": Case((machine("A", "/DC/vm/VDI/A"),), certain=("vm-1",)),
    "an escape of vCenter that is undone": Case((machine("c/d", "/dc/vm/vdi/c/d"),), certain=("vm-4",)),
    "an escape as vCenter writes it": Case((machine("c%2fd", "/dc/vm/vdi/c%2fd"),), certain=("vm-4",)),
    "an escape in other letter case": Case((machine("c%2Fd", "/dc/vm/vdi/c%2Fd"),), certain=("vm-4",)),
    "no path, and a name that one VM has": Case((machine("a"),), certain=("vm-1",)),
    "no path, and a name that two VMs have": Case(
        (machine("b"),), perhaps=("vm-2", "vm-3"), why="2 VMs have its name"
    ),
    "one of two VMs of a name, by its path": Case((machine("b", "/dc/vm/two/b"),), certain=("vm-3",)),
    "an old path": Case(
        (machine("a", "/dc/vm/old/a"),), perhaps=("vm-1",),
        why="its name fits, but no VM is at its path /dc/vm/old/a",
    ),
    "an old path and an old name": Case(
        (machine("was-a", "/dc/vm/vdi/was-a"),), perhaps=EVERY,
        why="no VM is at its path /dc/vm/vdi/was-a or has its name",
    ),
    "an old name without a path": Case((machine("was-a"),), perhaps=EVERY, why="no VM has its name"),
    "two machines at one path": Case(
        (A, replace(A, id="n")), perhaps=("vm-1",), why="another machine of the broker fits its VM too"
    ),
    "a machine at the path, and one left over of its name": Case(
        (machine("a", "/dc/vm/old/a"), replace(A, id="n")), perhaps=("vm-1",),
        why="its name fits, but no VM is at its path /dc/vm/old/a",
    ),
    "known by its guest alone": Case(
        (DesktopMachine("m", "a.example.com", "pool", managed=False),), perhaps=("vm-1",),
        why="the broker knows only the name of its guest",
    ),
    "a computer that is no VM": Case((DesktopMachine("m", "desk", "pool", managed=False),), why="no VM has its name"),
    "a twin in another vCenter": Case(
        (A, machine("a", "/dc/vm/vdi/a", "v2", "n")), certain=("vm-1",), vcenters=TWO
    ),
    "only in another vCenter": Case((replace(A, vcenter="v2"),), vcenters=TWO),
    "one vCenter, which the login may not read": Case((A,), certain=("vm-1",), vcenters=()),
    "one vCenter, and no id of it": Case((replace(A, vcenter=None),), certain=("vm-1",), vcenters=()),
    "two vCenters, which the login may not read": Case(
        (A, machine("z", "/dc/vm/vdi/z", "v2", "n")), perhaps=("vm-1",), why=UNTOLD, vcenters=()
    ),
    "two vCenters without uuids": Case(
        (A,), perhaps=("vm-1",), why=UNTOLD, vcenters=tuple(replace(each, instance_uuid=None) for each in TWO)
    ),
    "two vCenters, and no id with the machine": Case(
        (replace(A, vcenter=None),), perhaps=("vm-1",), vcenters=TWO,
        why="the broker does not report in which of its vCenters it is",
    ),
    "a vCenter that was rebuilt": Case(
        (A,), perhaps=("vm-1",), vcenters=(BrokerVcenter("v1", "vc-1", OTHER),),
        why="it is in vCenter vc-1, and none of the broker's vCenters has this uuid",
    ),
    "a vCenter and its copy": Case(
        (A,), perhaps=("vm-1",), vcenters=(*ONE, BrokerVcenter("v2", "copy", HERE)),
        why="two vCenters of the broker have the instance uuid of this one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_machine_is_a_vm_for_certain_or_a_session_on_it_keeps_whatever_it_may_be(case: str) -> None:
    expected = CASES[case]
    match = match_machines(VMS, HERE, expected.machines, expected.vcenters)
    assert tuple(match.machine_of) == expected.certain
    first = expected.machines[0]
    assert match.not_found.get(first.id, "") == expected.why
    in_use = read_sessions(match, [DesktopSession("1", first.id)], NOW)
    keeps = tuple(vm.ref for vm in VMS if (count := in_use.of(vm.ref)) is not None and count.used)
    assert keeps == (expected.certain or expected.perhaps)
    unused = read_sessions(match, [], NOW)
    idle = tuple(vm.ref for vm in VMS if (count := unused.of(vm.ref)) is not None and count.used is False)
    assert idle == expected.certain, "no VM counts as without a session if its machine may be another"


def test_machines_that_were_not_found_are_named_by_reason() -> None:
    machines = [machine("z"), machine("y", identity="n"), machine("b", identity="o")]
    assert match_machines(VMS, HERE, machines, ONE).reasons == ("b: 2 VMs have its name", "y, z: no VM has its name")
