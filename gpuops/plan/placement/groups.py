"""Groups: a vendor device group is given whole, on GPUs that the host knows to be joined and vCenter does not tell.

Source: vSphere API, VirtualMachineVendorDeviceGroupInfo (its component devices carry no address).
"""

from __future__ import annotations

from dataclasses import replace

from gpuops.advise.occupancy import GpuState, gpu_states, may_run
from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.vm import VgpuDevice, Vm
from gpuops.plan.placement.wanted import Placement


def as_group(vm: Vm, placement: Placement, inventory: Inventory, catalog: Catalog) -> Placement:
    """The placement of a VM whose devices are a group: pinned to nothing, and in doubt where GPUs may not be joined."""
    doubt = _doubt(vm, placement, inventory, catalog)
    return replace(placement, pins={}, doubts=(*placement.doubts, *([doubt] if doubt else [])))


def _doubt(vm: Vm, placement: Placement, inventory: Inventory, catalog: Catalog) -> str:
    """Why the joined GPUs may not be free; empty where it does not matter which are joined."""
    profiles = {device.profile for device in vm.devices or () if isinstance(device, VgpuDevice)}

    def may_join(state: GpuState) -> bool:
        return any(may_run(state.gpu, profile, catalog) is not False for profile in profiles)

    states = [state for state in gpu_states(placement.host, inventory, catalog) if may_join(state)]
    taken = [state for state in states if state.tenants or state.unclear]
    if not taken or len(states) <= len(vm.devices or ()):
        return ""
    return f"{placement.host.name}: which of its GPUs are joined vCenter does not tell; {len(taken)} of them are in use"
