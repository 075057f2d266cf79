"""The privileges that the steps of a plan need, and the refusal if the login lacks one, before the first step.

Sources: the privilege of each method, and of each field of ConfigSpec, in the vSphere API reference;
Global.SetCustomField in the vSphere security guide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import ASSIGN_TO_POOL, DEFINE_ATTRIBUTE, ObjectKind
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.rejection import Rejection
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
"""Needed to change the DRS override of a VM (vSphere API reference, ReconfigureComputeResource_Task)."""

HOT_MOVE: Final = COLD_MOVE | {"Resource.HotMigrate"}
"""Needed to move a running VM: Resource.ColdMigrate is required for every move, and Resource.HotMigrate as well if the
VM is running (vSphere API reference, RelocateVM_Task)."""


def needed_privileges(steps: Iterable[Step]) -> Mapping[str, frozenset[str]]:
    """Map VM ref -> the privileges that the steps need on it."""
    ids_by_vm: dict[str, set[str]] = {}
    for step in steps:
        ids_by_vm.setdefault(step.vm, set()).update(step.privileges)
    return {vm: frozenset(privileges) for vm, privileges in ids_by_vm.items()}


def needed_on_hosts_of_vms(
    steps: Sequence[Step], inventory: Inventory
) -> Mapping[ObjectKind, Mapping[str, frozenset[str]]]:
    """Map kind of object -> ref -> the privileges needed on this cluster, or on this host without a cluster.

    They are needed where the VMs will be moved or started, otherwise where they are now.
    """
    target_hosts = {step.vm: step.host for step in steps if isinstance(step, PowerOnVm | RelocateVm) and step.host}
    privileges_by_kind: dict[ObjectKind, dict[str, frozenset[str]]] = {ObjectKind.CLUSTER: {}, ObjectKind.HOST: {}}
    for step in steps:
        vm = inventory.vms.get(step.vm)
        host = inventory.hosts.get(target_hosts.get(step.vm) or (vm.host if vm else None) or "")
        if isinstance(step, SetVmDrs):
            privileges = EDIT_CLUSTER
        elif isinstance(step, RelocateVm) and changes_pool(step, inventory):
            privileges = ASSIGN_TO_POOL
        else:
            continue
        if host is not None:
            kind, ref = pool_owner(host)
            privileges_by_kind[kind][ref] = privileges_by_kind[kind].get(ref, frozenset()) | privileges
    return {kind: by_object for kind, by_object in privileges_by_kind.items() if by_object}


def pool_owner(host: Host) -> tuple[ObjectKind, str]:
    """Return the kind and ref of the owner of the host's resource pool: the cluster, or a host without a cluster."""
    return (ObjectKind.CLUSTER, host.cluster) if host.cluster is not None else (ObjectKind.HOST, host.ref)


def changes_pool(step: RelocateVm, inventory: Inventory) -> bool:
    """Return whether the move changes the resource pool of the VM; a move within a cluster does not."""
    vm = inventory.vms.get(step.vm)
    source, target = inventory.host_of(vm) if vm is not None else None, inventory.hosts.get(step.host)
    return source is None or target is None or source.cluster is None or source.cluster != target.cluster


def attributes(steps: Iterable[Step]) -> frozenset[str]:
    """Return the custom attributes that get a value: vCenter must have them first."""
    return frozenset(step.name for step in steps if isinstance(step, SetAttribute) and step.value)


def way_back(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps with which `rotate day` undoes these: a login without their privileges must not begin."""
    resumed = tuple(ResumeVm(step.vm) for step in steps if isinstance(step, SuspendVm))
    started = tuple(PowerOnVm(step.vm) for step in steps if isinstance(step, ShutDownGuest))
    return (*resumed, *started, *(PowerOffVm(step.vm) for step in steps if isinstance(step, PowerOnVm)))


def privilege_rejection(name: str, privileges: Collection[str], *, hint: str = "ask for a role with it") -> Rejection:
    """Return the refusal for an object of this name, on which the login lacks these privileges."""
    return Rejection(name, f"this login lacks {', '.join(sorted(privileges))}", hint=hint)


def refused_without(plan: Plan, lacking: Mapping[str, Collection[str]], inventory: Inventory) -> Plan:
    """Return the plan, or its refusal if the login lacks privileges or the API of vCenter is too old for changes.

    `lacking`: ref of a VM, host or cluster -> missing privileges. Earlier reasons to refuse the plan are kept, so that
    the admin sees all of them at once.
    """
    on_objects = tuple(
        privilege_rejection(_name(ref, inventory), privileges, hint=_next_move(ref, privileges, plan, inventory))
        for ref, privileges in lacking.items()
        if privileges
    )
    rejections = (*too_old(inventory), *on_objects) if plan.steps or plan.withheld else on_objects
    return replace(plan, waves=(), rejections=(*plan.rejections, *rejections)) if rejections else plan


def _name(ref: str, inventory: Inventory) -> str:
    place = inventory.clusters.get(ref) or inventory.hosts.get(ref)
    return place.name if place is not None else inventory.vm(ref).name


def too_old(inventory: Inventory) -> tuple[Rejection, ...]:
    """Return the refusal if the API of this vCenter is too old for changes; empty = it is not."""
    reason = why_only_read(inventory.api_version)
    return (Rejection("vCenter", reason, hint=TOO_OLD_NEXT),) if reason else ()


def _next_move(ref: str, privileges: Collection[str], plan: Plan, inventory: Inventory) -> str:
    where = "cluster" if ref in inventory.clusters else "host" if ref in inventory.hosts else "VM"
    ask = f"ask for a role with it on the {where}, or use a login that has it"
    if DEFINE_ATTRIBUTE not in privileges:
        return ask
    missing = ", ".join(sorted(attributes((*plan.steps, *plan.withheld))))
    init_command = f"run `gpuops rotate init --policy FILE` once with a login that may create the attribute {missing}"
    return init_command if len(privileges) == 1 else f"{init_command}; {ask}"


def needed_on_host(step: HostStep) -> frozenset[str]:
    """Return the privileges that the step needs on the host (vSphere API reference, privilege of each method)."""
    match step:
        case ConfigureModule() | ConfigureGraphics():
            return frozenset({"Host.Config.Settings"})
        case ConfigurePassthrough() | ConfigureModes():
            return frozenset({"Host.Config.PciPassthru"})
        case ConfigureMig():
            return frozenset()  # not done by vCenter
        case _:
            assert_never(step)
