"""Keeping: what on a host must find it, when it comes back, as it was when it left."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import parse_marker
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.plan import Rejection


def kept_as_they_are(host: Host, inventory: Inventory) -> Iterator[Rejection]:
    """A refusal for each VM that forbids changing the host's driver, scheduler or graphics mode.

    Between suspend and resume of a vGPU they must not change (NVIDIA vGPU docs, suspend and resume on VMware vSphere);
    and what a night has started or suspended there goes back in the morning to the host it knows.
    """
    for vm in sorted(inventory.vms_on(host), key=lambda vm: vm.name):
        marker = next((found for value in vm.attributes.values() if (found := parse_marker(value))), None)
        if marker is not None:
            hint = "gpuops rotate day brings it back; change the host then"
            yield Rejection(host.name, f"{vm.name} is in the rotation of night {marker.night}", hint=hint)
        elif vm.power is PowerState.SUSPENDED and may_hold_vgpu(vm):
            what = "its devices cannot be read" if vm.devices is None else "with a vGPU"
            hint = f"resume {vm.name} or shut it down; change the host then"
            yield Rejection(host.name, f"{vm.name} is suspended there, {what}", hint=hint)


def may_hold_vgpu(vm: Vm) -> bool:
    """Whether it has a vGPU, or nobody can say that it has none."""
    return vm.devices is None or bool(vm.vgpus)
