"""Find the privileges that making a cluster requires, and reject the plan if the login lacks one.

The new VMs do not exist yet, so privileges on them are looked up on the template (vSphere API reference, privileges
of each method and of each field of ConfigSpec). The others are looked up on the objects that a new VM uses (vSphere
security guide, required privileges for common tasks: deploy a virtual machine from a template).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from gpuops.extras.clusters.members import REMOVE_PRIVILEGES
from gpuops.extras.clusters.plan import ClusterPlan
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import ObjectKind
from gpuops.model.vcenter.role import ASSIGN_TO_POOL
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.privileges import EDIT_CLUSTER, pool_owner
from gpuops.plan.core.steps import SetVmDrs

CREATE_PRIVILEGES: Final = (
    "VirtualMachine.Provisioning.DeployTemplate",
    "VirtualMachine.Config.AddRemoveDevice",
    "VirtualMachine.Config.AdvancedConfig",
    "VirtualMachine.Config.Annotation",
    "VirtualMachine.Config.CPUCount",
    "VirtualMachine.Config.Memory",
    "VirtualMachine.Config.Resource",
    "VirtualMachine.Interact.PowerOn",
    *REMOVE_PRIVILEGES,  # a VM that could not be completed is removed again
)
"""Required for each new VM; looked up on the template."""
MAKE_IN_FOLDER: Final = frozenset({"VirtualMachine.Inventory.CreateFromExisting"})
ALLOCATE_SPACE: Final = frozenset({"Datastore.AllocateSpace"})
ASSIGN_NETWORK: Final = frozenset({"Network.Assign"})


def required_privileges(
    plan: ClusterPlan, folder: str | None, inventory: Inventory
) -> Mapping[ObjectKind, Mapping[str, frozenset[str]]]:
    """Return the privilege ids that making the cluster requires, by kind and managed object id; {} without changes.

    `folder` is the managed object id of the folder for the new VMs. None puts them into the template's folder, so
    the privilege is asked of the template, which inherits it from there. Raises VmNotFound, VmAmbiguous.
    """
    privileges_by_object: dict[ObjectKind, dict[str, frozenset[str]]] = {kind: {} for kind in ObjectKind}
    if not plan.changes:
        return {}

    def need(kind: ObjectKind, ref: str | None, privileges: Collection[str]) -> None:
        if ref is not None:
            privileges_by_object[kind][ref] = privileges_by_object[kind].get(ref, frozenset()) | frozenset(privileges)

    template = inventory.find_vm(plan.wish.template)
    need(ObjectKind.TEMPLATE, template.ref, CREATE_PRIVILEGES)
    for member in plan.members:
        if any(isinstance(step, SetVmDrs) for step in member.steps):
            need(ObjectKind.CLUSTER, member.host.cluster, EDIT_CLUSTER)
        if member.new is None:
            continue
        need(ObjectKind.TEMPLATE if folder is None else ObjectKind.FOLDER, folder or template.ref, MAKE_IN_FOLDER)
        need(*pool_owner(member.host), ASSIGN_TO_POOL)
        for datastore in template.datastores if member.new.datastore is None else (member.new.datastore,):
            need(ObjectKind.DATASTORE, datastore, ALLOCATE_SPACE)
        need(ObjectKind.PORT_GROUP, member.new.card.port_group if member.new.card else None, ASSIGN_NETWORK)
    return {kind: by_object for kind, by_object in privileges_by_object.items() if by_object}


def reject_missing_privileges(
    plan: ClusterPlan, lacking: Mapping[str, Collection[str]], inventory: Inventory
) -> ClusterPlan:
    """Return the plan with one rejection for each object on which the login lacks privileges (`lacking`: by object)."""
    reasons = []
    for ref, missing in lacking.items():
        if missing:
            name, kind = _name_and_kind(ref, plan, inventory)
            reason = f"this login lacks {', '.join(sorted(missing))}"
            reasons.append(Rejection(name, reason, hint=f"ask for a role with it on the {kind}"))
    return replace(plan, rejections=(*plan.rejections, *reasons)) if reasons else plan


def _name_and_kind(ref: str, plan: ClusterPlan, inventory: Inventory) -> tuple[str, str]:
    """Return the name and the kind of an object that the plan uses; an unknown id is the folder's."""
    if ref in inventory.clusters:
        return inventory.clusters[ref].name, "cluster"
    if ref in inventory.hosts:
        return inventory.hosts[ref].name, "host"
    if ref in inventory.datastores:
        return inventory.datastores[ref].name, "datastore"
    if ref in inventory.vms:
        return inventory.vm(ref).name, "template"
    is_port_group = any(member.new and member.new.card and member.new.card.port_group == ref for member in plan.members)
    return (plan.wish.port_group or ref, "port group") if is_port_group else (plan.wish.folder or ref, "folder")
