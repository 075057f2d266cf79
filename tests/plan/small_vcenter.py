"""A vCenter of a few hosts whose admission is the simulator's own: what it shows, and what it lets start.

The rules of the planner and those of the simulator are written twice, from the same documents, so that each can find
the other wrong. Only the GPUs, the memory and the whole devices of the simulated hosts are here, no wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, PowerState, Vm, pins_of
from gpuops.sim.state import board as boards
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, RunningVgpu, VgpuPolicy, WantedVgpu, admit
from tests.plan.snapshots import catalog

MODES = {
    VgpuMode.SAME_SIZE: GpuMode.SAME_SIZE,
    VgpuMode.MIXED_SIZE: GpuMode.MIXED_SIZE,
    VgpuMode.MULTI_INSTANCE: GpuMode.MULTI_INSTANCE,
}


@dataclass
class SmallVcenter:
    """Hosts as the planner knows them; `running` are the VMs that were let start, with their seats."""

    hosts: dict[str, Host]
    vms: dict[str, Vm] = field(default_factory=dict)
    running: dict[str, tuple[RunningVgpu, ...]] = field(default_factory=dict)

    def start(self, vm: Vm) -> str:
        """Powers the VM on, on its host; why not, or nothing."""
        host = self.hosts[vm.host or ""]
        on = [self.vms[ref] for ref in self.running if self.vms[ref].host == host.ref]
        if sum(powered_vm.memory_mib or 0 for powered_vm in (*on, vm)) > (host.memory_mib or 0):
            return f"{vm.name}: no memory"
        whole = self._whole(vm)
        if len(set(whole)) < len(whole) or set(whole) & {
            address for other_vm in on for address in self._whole(other_vm)
        }:
            return f"{vm.name}: a whole device is held"
        pins = pins_of(vm)
        wishes = [WantedVgpu(p, str(pins[n]) if n in pins else None) for n, p in enumerate(vm.profiles)]
        policy = (
            VgpuPolicy.CONSOLIDATION
            if host.assignment_policy is AssignmentPolicy.CONSOLIDATION
            else VgpuPolicy.PERFORMANCE
        )
        seats = admit(vm.ref, wishes, self.gpus(host), policy) if wishes else ()
        if isinstance(seats, NotAdmitted):
            return f"{vm.name}: {seats}"
        self.vms[vm.ref] = replace(vm, power=PowerState.ON)
        self.running[vm.ref] = seats
        return ""

    def suspend(self, vm: Vm) -> None:
        self.vms[vm.ref] = replace(self.vms[vm.ref], power=PowerState.SUSPENDED)
        del self.running[vm.ref]

    def gpus(self, host: Host) -> list[GpuLoad]:
        """The host's GPUs for vGPUs, with what runs on them."""
        seats = [seat for ref, seats in self.running.items() if self.vms[ref].host == host.ref for seat in seats]
        return [
            GpuLoad(
                str(gpu.address),
                boards.board(_key(gpu)),
                MODES[gpu.vgpu_mode],
                serves_vgpus=True,
                seats=tuple(seat for seat in seats if seat.pci_id == str(gpu.address)),
            )
            for gpu in host.gpus
            if gpu.vgpu_mode is not None
        ]

    def inventory(self, snapshot: Inventory) -> Inventory:
        """What the planner is shown."""
        hosts = []
        for host in self.hosts.values():
            on = {ref: seats for ref, seats in self.running.items() if self.vms[ref].host == host.ref}
            gpus = tuple(
                gpu
                if gpu.vms is None
                else replace(
                    gpu,
                    vms=tuple(ref for ref, seats in on.items() if any(s.pci_id == str(gpu.address) for s in seats)),
                )
                for gpu in host.gpus
            )
            hosts.append(replace(host, gpus=gpus))
        return replace(snapshot, hosts={host.ref: host for host in hosts}, vms=dict(self.vms), origin=None)

    def could_start(self, vm: Vm) -> bool:
        """Whether any way to pin its vGPUs to GPUs of its host would be admitted."""
        addresses = [gpu.pci_id for gpu in self.gpus(self.hosts[vm.host or ""])]
        for pins in product(addresses, repeat=len(vm.profiles)):
            named = {f"pciPassthru{n}.cfg.gpu-pci-id": pin for n, pin in enumerate(pins)}
            trial = SmallVcenter(self.hosts, dict(self.vms), dict(self.running))
            if not trial.start(replace(vm, extra_config=named)):
                return True
        return False

    def _whole(self, vm: Vm) -> list[PciAddress]:
        return [device.address for device in vm.devices or () if isinstance(device, DirectPathDevice)]


def _key(gpu: PhysicalGpu) -> str:
    board = catalog().board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    assert board is not None
    return board.key
