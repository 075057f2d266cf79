"""What speaks against removing the VMs of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.plan.cluster.members import MarkedVm
from gpuops.plan.core.plan import Rejection

REMOVE_PRIVILEGES: Final = (
    "VirtualMachine.Interact.PowerOff",
    "VirtualMachine.Inventory.Delete",
    "VirtualMachine.Config.AdvancedConfig",
)
"""vSphere API reference, PowerOffVM_Task, Destroy_Task, and ReconfigVM_Task for the lease that keeps runs away."""


def removal_refused(found: Sequence[MarkedVm]) -> tuple[Rejection, ...]:
    """Why nothing of it is removed: a copy that somebody made says the same of itself as the VM that it is of."""
    ranks = [(each.marker.id, each.marker.rank) for each in found]
    twice = [each for each in found if ranks.count((each.marker.id, each.marker.rank)) > 1]
    copies = tuple(
        Rejection(
            each.vm.path or each.vm.ref,
            f"claims rank {each.marker.rank} of cluster {each.marker.cluster} as another VM does",
            hint="rename the copy: a VM of another name is never removed",
        )
        for each in twice
    )
    managed = ((each, managed_elsewhere(each.vm)) for each in found)
    return (*copies, *(Rejection(each.vm.name, reason) for each, reason in managed if reason is not None))
