"""The privileges that the steps of a plan need, and the refusal of a login that lacks one.

They are checked before the first effect. Sources: the privilege of each method, and of each field of
ConfigSpec, in the vSphere API reference; Global.SetCustomField in the vSphere security guide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import ASSIGN_TO_POOL, DEFINE_ATTRIBUTE, ObjectKind
from gpuops.plan.core.plan import Plan, Rejection
from gpuops.plan.core.steps import (
    COLD_MOVE,
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    HostStep,
    PowerOffVm,
    PowerOnVm,
    RelocateVm,
    ResumeVm,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.core.versions import TOO_OLD_NEXT, why_only_read

EDIT_CLUSTER: Final = frozenset({"Host.Inventory.EditCluster"})
"""To change an override of DRS (vSphere API reference, ReconfigureComputeResource_Task)."""

HOT_MOVE: Final = COLD_MOVE | {"Resource.HotMigrate"}
"""Of a running VM: the call is declared with Resource.ColdMigrate whatever the VM does, and asks for the other besides
(vSphere API reference, RelocateVM_Task)."""


def needed_privileges(steps: Iterable[Step]) -> Mapping[str, frozenset[str]]:
    """Privilege ids by the VM (managed object id) they are needed on."""
    ids_by_vm: dict[str, set[str]] = {}
    for step in steps:
        ids_by_vm.setdefault(step.vm, set()).update(step.privileges)
    return {vm: frozenset(privileges) for vm, privileges in ids_by_vm.items()}


def needed_on_hosts_of_vms(
    steps: Sequence[Step], inventory: Inventory
) -> Mapping[ObjectKind, Mapping[str, frozenset[str]]]:
    """Privilege ids by the cluster or standalone host on which they are needed: where VMs are now, or will be started.

    The keys are the kind and the managed object id.
    """
    hosts = {step.vm: step.host for step in steps if isinstance(step, PowerOnVm | RelocateVm) and step.host}
    ids_by_kind: dict[ObjectKind, dict[str, frozenset[str]]] = {ObjectKind.CLUSTER: {}, ObjectKind.HOST: {}}
    for step in steps:
        vm = inventory.vms.get(step.vm)
        host = inventory.hosts.get(hosts.get(step.vm) or (vm.host if vm else None) or "")
        privileges = _of_cluster(step, inventory)
        if host is not None and privileges:
            kind, ref = pool_owner(host)
            ids_by_kind[kind][ref] = ids_by_kind[kind].get(ref, frozenset()) | privileges
    return {kind: by_object for kind, by_object in ids_by_kind.items() if by_object}


def pool_owner(host: Host) -> tuple[ObjectKind, str]:
    """Return the kind and id of what has the resource pool of a host's VMs: its cluster, or the host if it has none."""
    return (ObjectKind.CLUSTER, host.cluster) if host.cluster is not None else (ObjectKind.HOST, host.ref)


def changes_pool(step: RelocateVm, inventory: Inventory) -> bool:
    """Return whether the VM comes into another resource pool: a move within one cluster leaves it where it is."""
    vm = inventory.vms.get(step.vm)
    present, target = inventory.host_of(vm) if vm is not None else None, inventory.hosts.get(step.host)
    same = present is not None and target is not None and present.cluster == target.cluster
    return not same or present is None or present.cluster is None


def attributes(steps: Iterable[Step]) -> frozenset[str]:
    """Names of the custom attributes that get a value: one that vCenter does not have yet must be defined first."""
    return frozenset(step.name for step in steps if isinstance(step, SetAttribute) and step.value)


def way_back(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps that `rotate day` needs to undo these: a login without their privileges must not begin."""
    resumed = tuple(ResumeVm(step.vm) for step in steps if isinstance(step, SuspendVm))
    started = tuple(PowerOnVm(step.vm) for step in steps if isinstance(step, ShutDownGuest))
    return (*resumed, *started, *(PowerOffVm(step.vm) for step in steps if isinstance(step, PowerOnVm)))


def refused_without(plan: Plan, lacking: Mapping[str, Collection[str]], inventory: Inventory) -> Plan:
    """The plan, or in its place the refusal that names every privilege this login lacks on the plan's VMs and clusters.

    A vCenter whose API is too old to be changed is refused too.
    The other reasons against the plan are kept, so that the admin sees all of them at once.
    """
    on_objects = tuple(
        Rejection(
            _name(ref, inventory),
            f"this login lacks {', '.join(sorted(privileges))}",
            hint=_next_move(ref, privileges, plan, inventory),
        )
        for ref, privileges in lacking.items()
        if privileges
    )
    rejections = (*too_old(inventory), *on_objects) if plan.steps or plan.withheld else on_objects
    return replace(plan, waves=(), rejections=(*plan.rejections, *rejections)) if rejections else plan


def _name(ref: str, inventory: Inventory) -> str:
    place = inventory.clusters.get(ref) or inventory.hosts.get(ref)
    return place.name if place is not None else inventory.vm(ref).name


def too_old(inventory: Inventory) -> tuple[Rejection, ...]:
    """Return the refusal of every change of a vCenter whose API is too old for it; empty for others."""
    reason = why_only_read(inventory.api_version)
    return (Rejection("vCenter", reason, hint=TOO_OLD_NEXT),) if reason else ()


def _next_move(ref: str, privileges: Collection[str], plan: Plan, inventory: Inventory) -> str:
    where = "cluster" if ref in inventory.clusters else "host" if ref in inventory.hosts else "VM"
    ask = f"ask for a role with it on the {where}, or log in as somebody who has it"
    if DEFINE_ATTRIBUTE not in privileges:
        return ask
    missing = ", ".join(sorted(attributes((*plan.steps, *plan.withheld))))
    init_command = f"gpuops rotate init --policy FILE makes the custom attribute {missing} once, by a login that may"
    return init_command if len(privileges) == 1 else f"{init_command}; {ask}"


def _of_cluster(step: Step, inventory: Inventory) -> frozenset[str]:
    match step:
        case SetVmDrs():
            return EDIT_CLUSTER
        case RelocateVm() if changes_pool(step, inventory):
            return ASSIGN_TO_POOL
        case _:
            return frozenset()


def needed_on_host(step: HostStep) -> frozenset[str]:
    """Return what the login needs on the host (vSphere API reference, the methods' privileges)."""
    match step:
        case ConfigureModule() | ConfigureGraphics():
            return frozenset({"Host.Config.Settings"})
        case ConfigurePassthrough() | ConfigureModes():
            return frozenset({"Host.Config.PciPassthru"})
        case ConfigureMig():
            return frozenset()  # it is no call to vCenter
        case _:
            assert_never(step)
