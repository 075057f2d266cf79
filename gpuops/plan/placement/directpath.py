"""DirectPath filters: whether a host can give a PCI device whole, to a VM that names it or to one of its type.

Sources: vSphere API, HostPciPassthruInfo (enabled = configured, active = in force) and HostAssignableHardwareBinding.
"""

from __future__ import annotations

from collections.abc import Collection

from gpuops.model.gpu import PciAddress, PhysicalGpu
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import DirectPathDevice, DynamicDevice, PowerState, Vm
from gpuops.plan.placement.wanted import WantsDirectPath, WantsDynamic
from gpuops.plan.plan import Rejection


def given(demand: WantsDirectPath, vm: Vm, host: Host, inventory: Inventory) -> Rejection | str:
    """A doubt about the device ("" = certain), or why the host cannot give it to the VM."""
    subject = f"{host.name} {demand.address}"
    holder = holders(host, inventory).get(demand.address)
    if holder is not None and holder != vm.ref:
        name = inventory.vms[holder].name if holder in inventory.vms else holder
        return Rejection(subject, f"is held by {name}, which runs", hint=f"stop {name}, or choose another device")
    gpu = host.gpu(demand.address)
    if gpu is not None:
        return _not_active(gpu, subject) or ""
    if not host.readable:
        return Rejection(subject, "the devices of its host cannot be read")
    if host.config_target is None:
        if host.ref != vm.host:
            return Rejection(subject, "is no GPU of this host")
        return f"{subject}: not a GPU that the host lists; its passthrough state is not checked"
    there = [target.address for target in host.config_target.passthrough]
    if demand.address in there:
        return ""
    known = ", ".join(str(address) for address in sorted(there)) or "none"
    return Rejection(subject, f"is no passthrough device of this host (it has: {known})")


def _not_active(gpu: PhysicalGpu, subject: str) -> Rejection | None:
    state = gpu.passthrough
    if state is None:
        return Rejection(subject, "its passthrough state cannot be read")
    if state.active and state.enabled:
        return None
    if state.reboot_pending:
        change = "is switched on" if state.enabled else "is switched off"
        return Rejection(
            subject, f"its passthrough {change} and waits for a reboot of the host", hint="reboot the host"
        )
    if not state.capable:
        return Rejection(subject, "cannot be passed through (the host says it is not capable)")
    hint = "switch passthrough on for it on the host; vGPUs can then no longer use it"
    return Rejection(subject, "is not switched to passthrough", hint=hint)


def any_given(
    demand: WantsDynamic,
    vm: Vm,
    taken: Collection[PciAddress],
    host: Host,
    inventory: Inventory,
    node: int | None = None,
) -> PciAddress | Rejection:
    """A device of the host (of its NUMA node `node`) that fits and nobody holds, lowest address first; or why none."""
    fitting = [gpu for gpu in host.gpus if is_of(gpu, demand) and node in (None, gpu.numa_node)]
    active = sorted(gpu.address for gpu in fitting if gpu.passthrough is not None and gpu.passthrough.active)
    held = {address: ref for address, ref in holders(host, inventory).items() if ref != vm.ref}
    free = [address for address in active if address not in held and address not in taken]
    if free:
        return free[0]
    wanted = f"device of type {_types(demand)}" + (f" with label {demand.label}" if demand.label else "")
    if not active:
        where = "" if node is None else f" on NUMA node {node}"
        return Rejection(host.name, f"has no {wanted} in passthrough{where}")
    names = {held[address] for address in active if address in held}
    who = ", ".join(sorted(inventory.vms[ref].name if ref in inventory.vms else ref for ref in names))
    rule = f"{wanted} that is free ({len(active)} there" + (f", held by {who})" if who else ")")
    return Rejection(host.name, rule, 1 + sum(address in taken for address in active), len(active) - len(names))


def holders(host: Host, inventory: Inventory) -> dict[PciAddress, str]:
    """Which VM holds each passthrough device of the host now: as the host binds them, and as running VMs carry them."""
    found = {binding.address: binding.vm for binding in host.bindings if _may_hold(binding.vm, inventory)}
    for vm in inventory.vms_on(host):
        if vm.power is not PowerState.ON:
            continue
        for device in vm.devices or ():
            match device:
                case DirectPathDevice(address=address):
                    found[address] = vm.ref
                case DynamicDevice(assigned=PciAddress() as address):
                    found[address] = vm.ref
                case _:
                    pass
    return found


def _may_hold(ref: str, inventory: Inventory) -> bool:
    """A VM that is off holds no device, though its binding may be listed for a while."""
    vm = inventory.vms.get(ref)
    return vm is None or vm.power is not PowerState.OFF


def is_of(gpu: PhysicalGpu, demand: WantsDynamic) -> bool:
    if (gpu.vendor_id, gpu.device_id) not in demand.allowed:
        return False
    return demand.label is None or (gpu.passthrough is not None and gpu.passthrough.label == demand.label)


def _types(demand: WantsDynamic) -> str:
    return " or ".join(f"{vendor:04x}:{device:04x}" for vendor, device in demand.allowed)
