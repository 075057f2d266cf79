"""What making a cluster needs of the login, and the refusal where it is not there.

Asked of the template, for its clones are not there yet (vSphere API reference, the privilege of each method and of each
field of ConfigSpec).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.cluster.plan import ClusterPlan
from gpuops.plan.cluster.removal import REMOVE_PRIVILEGES
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.privileges import EDIT_CLUSTER
from gpuops.plan.core.steps import SetVmDrs

CREATE_PRIVILEGES: Final = (
    "VirtualMachine.Provisioning.DeployTemplate",
    "VirtualMachine.Config.AddRemoveDevice",
    "VirtualMachine.Config.AdvancedConfig",
    "VirtualMachine.Config.CPUCount",
    "VirtualMachine.Config.Memory",
    "VirtualMachine.Config.Resource",
    "VirtualMachine.Interact.PowerOn",
    *REMOVE_PRIVILEGES,  # what fails is removed again
)
"""Of each VM."""


def needed_to_create(
    plan: ClusterPlan, inventory: Inventory
) -> tuple[Mapping[str, Collection[str]], Mapping[str, Collection[str]]]:
    """Privilege ids by VM and by cluster of hosts; empty where nothing is to be done."""
    if not plan.changes:
        return {}, {}
    vms = {inventory.find_vm(plan.wish.template).ref: CREATE_PRIVILEGES}
    overridden = [each for each in plan.members if any(isinstance(step, SetVmDrs) for step in each.steps)]
    return vms, {each.host.cluster: EDIT_CLUSTER for each in overridden if each.host.cluster is not None}


def permitted(plan: ClusterPlan, lacking: Mapping[str, Collection[str]], inventory: Inventory) -> ClusterPlan:
    """The plan, refused where this login lacks a privilege for it."""
    reasons = tuple(
        Rejection(
            inventory.clusters[ref].name if ref in inventory.clusters else inventory.vm(ref).name,
            f"this login lacks {', '.join(sorted(missing))}",
            hint=f"ask for a role with it on the {'cluster' if ref in inventory.clusters else 'template'}",
        )
        for ref, missing in lacking.items()
        if missing
    )
    return replace(plan, rejections=(*plan.rejections, *reasons)) if reasons else plan
