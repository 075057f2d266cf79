"""Explains a placement: room on each GPU, memory that may be remote, device groups whose joined GPUs may not be free,
and VMs that could then no longer start.

`plan/vm/attach.py` and `plan/queue/one_workload.py` call it; nothing here chooses a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpuops.advise.occupancy import GpuState, gpu_states, may_run, room_for
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice, Vm, is_gpu, pins_of
from gpuops.plan.core.plan import Choice
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.gpu_filters import judge_device, judge_slot
from gpuops.plan.placement.host_filters import free_memory_mib, node_shortages, surely_free_memory_mib
from gpuops.plan.placement.project import take
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.vm_demand import (
    Demand,
    Placement,
    Wanted,
    WantsDirectPath,
    WantsDynamic,
    WantsVgpu,
    demands_of,
)


def explain_gpus(needs: Wanted, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[Choice]:
    """Yield a line for each GPU of the host and each kind of device that the VM needs: the room, or the refusal with
    its numbers."""
    distinct_demands = _one_demand_per_kind(needs)
    whole_device_demands = [demand for demand in distinct_demands if not isinstance(demand, WantsVgpu)]
    for state in gpu_states(host, inventory, catalog):
        subject = f"{host.name} {state.gpu.address}"
        for demand in distinct_demands:
            if isinstance(demand, WantsVgpu):
                # The VM is placed anew, so what it holds itself counts as free.
                verdict = judge_slot(state.without(needs.vm.ref), demand, needs.vm, host, catalog)
                slots, count = room_for(state, demand.profile, catalog), "an unknown number of"
                if slots.at_most is not None:
                    count = str(slots.at_most) if slots.exact else f"{slots.at_least} to {slots.at_most}"
                yield _as_choice(subject, verdict, f"room for {count} {demand.profile}")
            else:
                verdict = _judge_whole_gpu(demand, needs, state.gpu, host, inventory)
                yield _as_choice(subject, verdict, "free as a whole")
    for device in host.others:
        for demand in whole_device_demands if device.passed_through else ():
            verdict = _judge_whole_gpu(demand, needs, device, host, inventory)
            yield _as_choice(f"{host.name} {device.address}", verdict, "free as a whole")


def _one_demand_per_kind(needs: Wanted) -> tuple[Demand, ...]:
    """Return one demand of each kind, so that a VM with eight equal vGPUs gets one line for each GPU."""
    kinds: dict[object, Demand] = {}
    for demand in needs.demands:
        match demand:
            case WantsVgpu(profile=profile):
                kinds.setdefault(profile, demand)
            case WantsDirectPath(address=address):
                kinds.setdefault(address, demand)
            case WantsDynamic(allowed=allowed, label=label):
                kinds.setdefault((allowed, label), demand)
    return tuple(kinds.values())


def _judge_whole_gpu(
    demand: WantsDirectPath | WantsDynamic,
    needs: Wanted,
    gpu: PhysicalGpu | OtherDevice,
    host: Host,
    inventory: Inventory,
) -> Rejection | str:
    if isinstance(demand, WantsDynamic) and (gpu.vendor_id, gpu.device_id) not in demand.allowed:
        return Rejection(f"{host.name} {gpu.address}", f"is another model ({gpu.name})")
    return judge_device(WantsDirectPath(demand.ordinal, gpu.address), needs.vm, host, inventory)


def _as_choice(subject: str, doubt_or_rejection: Rejection | str, room: str) -> Choice:
    if isinstance(doubt_or_rejection, Rejection):
        return Choice(subject, chosen=False, reason=doubt_or_rejection.reason)
    reason = f"{room}, but {doubt_or_rejection}" if doubt_or_rejection else room
    return Choice(subject, chosen=False, reason=reason, feasible=True)


def remote_memory(vm: Vm, numa: NumaPolicy, placement: Placement, inventory: Inventory) -> Iterator[str]:
    """Yield a warning for each core or memory shortage on the NUMA nodes of the VM's GPUs, if locality is preferred."""
    if numa is not NumaPolicy.PREFERRED or placement.local_nodes:
        return  # the memory of a VM that is bound to nodes is on these nodes
    gpus = [gpu for address in placement.seats.values() if (gpu := placement.host.device(address)) is not None]
    nodes = {gpu.numa_node for gpu in gpus} - {None}
    if not nodes:
        yield f"the NUMA node of the GPU on {placement.host.name} cannot be read: memory of the VM may be remote"
        return
    if len(nodes) > 1:
        yield f"the GPUs of {vm.name} are on NUMA nodes {', '.join(map(str, sorted(nodes, key=str)))}"
    for node in placement.host.numa_nodes:
        if node.id in nodes:
            shortages = node_shortages(vm, node, placement.host, inventory)
            yield from (f"{rejection}: the rest is remote" for rejection in shortages)


def warn_of_remote_memory(vm: Vm, numa: NumaPolicy, placement: Placement, inventory: Inventory) -> Iterator[str]:
    """Yield a warning for each node of the GPUs whose memory is only free if ESXi keeps other VMs on other nodes.

    Most VMs are bound to no node, and vCenter does not report where their memory is. There are warnings only if
    locality is required: a VM that prefers it is not bound to a node either, and ESXi balances it.
    """
    if numa is not NumaPolicy.REQUIRED or vm.memory_mib is None:
        return
    # Each node that the VM is bound to holds an equal part of its memory, rounded up.
    host, needed_mib = placement.host, -(-vm.memory_mib // len(placement.local_nodes))
    for node in (node for node in host.numa_nodes if node.id in placement.local_nodes):
        least_mib = surely_free_memory_mib(node, vm, host, inventory)
        if needed_mib > least_mib:
            most_mib = free_memory_mib(node, vm, host, inventory)
            free_text = f"{least_mib} to {most_mib} there"
            yield (
                f"{host.name} numa{node.id}: memory beside the GPU: needs {needed_mib} MiB, {free_text}: "
                "VMs that run on this host are bound to no node and may have the rest"
            )


def as_device_group(vm: Vm, placement: Placement, inventory: Inventory, catalog: Catalog) -> Placement:
    """Return the placement for a VM whose devices are a vendor device group: without pins, and with a doubt if the
    joined GPUs of the host may be in use.

    The host gives a group its GPUs together and knows which GPUs are joined. vCenter does not show it (vSphere API,
    VirtualMachineVendorDeviceGroupInfo: its component devices carry no address).
    """
    profiles = {device.profile for device in vm.devices or () if isinstance(device, VgpuDevice)}

    def may_join(state: GpuState) -> bool:
        return any(may_run(state.gpu, profile, catalog) is not False for profile in profiles)

    states = [state for state in gpu_states(placement.host, inventory, catalog) if may_join(state)]
    busy_count = sum(bool(state.tenants or state.unclear) for state in states)
    # It does not matter which GPUs are joined if all are free, or if the group needs all of them.
    if not busy_count or len(states) <= len(vm.devices or ()):
        return replace(placement, pins={})
    busy = f"{busy_count} of its GPUs {'is' if busy_count == 1 else 'are'} in use"
    doubt = f"{placement.host.name}: {busy}, and vCenter does not report which GPUs are joined"
    return replace(placement, pins={}, doubts=(*placement.doubts, doubt))


def find_displaced_vms(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> tuple[Vm, ...]:
    """Return the VMs of the host, off or suspended, that could start now and could not once this VM runs."""
    # Only the VMs of this host are copied from step to step: a fleet has thousands of others.
    other_vms = [other_vm for other_vm in inventory.vms_on(host) if other_vm.ref != vm.ref]
    host_only = replace(inventory, vms={other_vm.ref: other_vm for other_vm in other_vms})
    stopped = [other_vm for other_vm in other_vms if other_vm.power in (PowerState.OFF, PowerState.SUSPENDED)]
    waiting = [stopped_vm for stopped_vm in stopped if stopped_vm.devices and not stopped_vm.template]
    # Suspended ones first: they come back, and those that are off may never start again.
    waiting.sort(key=lambda waiting_vm: (waiting_vm.power is not PowerState.SUSPENDED, waiting_vm.name))
    startable_now = _startable(waiting, host_only, catalog)
    running = replace(vm, host=host.ref, power=PowerState.ON)
    startable_then = _startable(waiting, take(running, host_only, catalog), catalog)
    displaced = startable_now - startable_then
    return tuple(waiting_vm for waiting_vm in waiting if waiting_vm.ref in displaced)


def warn_of_displaced(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> tuple[str, ...]:
    """Return a warning that names the displaced VMs; empty if there are no such VMs."""
    displaced_vms = find_displaced_vms(vm, host, inventory, catalog)
    if not displaced_vms:
        return ()
    names = ", ".join(
        f"{displaced.name} ({'suspended' if displaced.power is PowerState.SUSPENDED else 'off'})"
        for displaced in displaced_vms
    )
    devices = [device for displaced in displaced_vms for device in displaced.devices or ()]
    device_word = "GPU" if any(map(is_gpu, devices)) else "device"
    return (f"while {vm.name} runs, {host.name} has no {device_word} left for {names}",)


def _startable(vms: Iterable[Vm], inventory: Inventory, catalog: Catalog) -> frozenset[str]:
    """Return the refs of the VMs that could be started one after the other."""
    started = []
    for vm in vms:
        host = inventory.hosts.get(vm.host or "")
        if host is None:
            continue
        if seat(vm, demands_of(vm.devices or (), pins_of(vm)), host, inventory, catalog).complete:
            inventory = take(replace(vm, power=PowerState.ON), inventory, catalog)
            started.append(vm.ref)
    return frozenset(started)
