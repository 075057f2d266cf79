"""Overrides: the change of a cluster that says what DRS does with one VM of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuops.errors import Refused
from gpuops.model.drs import VmDrs
from gpuops.vsphere import managed

if TYPE_CHECKING:
    from gpuops.model.inventory import Inventory
    from gpuops.plan.core.steps import SetVmDrs
    from gpuops.vsphere.session import Session


def overriding(session: Session, step: SetVmDrs, inventory: Inventory) -> tuple[Callable[..., Any], Any, bool]:
    """The call that makes, changes or removes the VM's override, and its arguments; all else stays as it is.

    Which of the three depends on what is there: to add one that exists is refused. Raises Refused where that cannot be
    read (vSphere API reference, ReconfigureComputeResource_Task with `modify`, ClusterDrsVmConfigSpec).
    """
    vm = inventory.vm(step.vm)
    cluster = inventory.cluster_of(vm)
    if cluster is None or cluster.drs_enabled is None:
        raise Refused(f"{vm.name}: what DRS does in its cluster cannot be read, so it is not changed")
    target = managed.managed(session, "ClusterComputeResource", cluster.ref)
    return target.ReconfigureComputeResource_Task, override_spec(step, there=cluster.has_override(step.vm)), True


def override_spec(step: SetVmDrs, *, there: bool) -> Any:
    """The ClusterConfigSpecEx of the step; `there`: the VM has an override already."""
    from pyVmomi import vim

    key = vim.VirtualMachine(step.vm)
    if step.drs is VmDrs.CLUSTER:
        change = vim.cluster.DrsVmConfigSpec(operation="remove", removeKey=key)
    else:
        said: Any = {} if step.drs is VmDrs.OFF else {"behavior": step.drs.value}
        info = vim.cluster.DrsVmConfigInfo(key=key, enabled=step.drs is not VmDrs.OFF, **said)
        change = vim.cluster.DrsVmConfigSpec(operation="edit" if there else "add", info=info)
    return vim.cluster.ConfigSpecEx(drsVmConfigSpec=[change])
