"""Whether a GPU has a slot for a vGPU, or a host can give a PCI device whole; and in which order hosts
choose.

`seating.py`, `candidates.py`, `explain.py` and `fleet/states.py` call it.

Sources: vSphere API, HostPciPassthruInfo (enabled = configured, active = in force) and HostAssignableHardwareBinding;
HostGraphicsInfo.graphicsType; HostGraphicsConfig.sharedPassthruAssignmentPolicy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import GpuState, Tenant, may_run
from gpuops.advise.room import range_of_room, room_for
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import AssignmentPolicy, GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Awaited, DirectPathDevice, DynamicDevice, PowerState, Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.wanted import WantsDirectPath, WantsDynamic, WantsVgpu


def judge_slot(state: GpuState, demand: WantsVgpu, vm: Vm, host: Host, catalog: Catalog) -> Rejection | str:
    """A doubt about the slot ("" = certain), or why the GPU has none beside what runs and the VM's own vGPUs so far.

    A doubt does not name the GPU.
    """
    subject = f"{host.name} {state.gpu.address}"
    refused = refuse_vgpus(state.gpu, subject)
    if refused is not None:
        return refused
    slots = room_for(state, demand.profile, catalog)
    if may_run(state.gpu, demand.profile, catalog) is False:
        return Rejection(subject, slots.because)
    if not slots.possible:
        return _no_slot(state, demand.profile, vm, subject, catalog)
    if state.unclear:
        return Rejection(subject, f"what runs on it is not known: {state.unclear}")
    return "" if slots.at_least else slots.because


def _no_slot(state: GpuState, profile: str, vm: Vm, subject: str, catalog: Catalog) -> Rejection:
    """Why the GPU has no slot: for what runs there, or for what takes the slots that this leaves.

    Only what surely runs there is said to. What may run there, and what a plan counts beside it, is asked in turn until
    no slot is left.
    """
    running = [tenant for tenant in state.tenants if tenant.awaited is None and tenant.vm != vm.ref]
    there = replace(state, tenants=tuple(tenant for tenant in running if tenant.certain))
    now = room_for(there, profile, catalog)
    if not now.possible:
        return Rejection(subject, f"{now.because}{_held_by(there.tenants)}", 1, 0, "slot")
    unsure = [tenant for tenant in running if not tenant.certain]
    there = there.with_tenants(*unsure)
    if not room_for(there, profile, catalog).possible:
        names = ", ".join(sorted({tenant.name for tenant in unsure}))
        rule = f"no slot for {profile} can be promised: which vGPUs of {names} run on it vCenter does not tell"
        return Rejection(subject, rule)
    takers: list[str] = []
    counted: list[Tenant] = []
    for taker, tenants in _in_the_plan(state, vm):
        takers.append(taker)
        counted += tenants
        if not room_for(there.with_tenants(*counted), profile, catalog).possible:
            break
    room = f"its room for {profile} is" if unsure else _slots_of(profile, now)
    all_there = len(_surely_there(counted, there, profile, catalog)) == len(counted)
    verb = "taken" if all_there else "perhaps taken"
    held = _held_by(tenant for tenant in counted if tenant.vm != vm.ref)
    return Rejection(subject, f"{room} {verb} by {' and '.join(takers)}{held}")


def range_beside(state: GpuState, profile: str, vm: str, catalog: Catalog) -> Slots:
    """Room for the profile from the worst to the best: if what a plan counts there in doubt finds no place on it."""
    running = replace(state, tenants=tuple(t for t in state.tenants if t.awaited is None and t.vm != vm))
    counted = [tenant for tenant in state.tenants if tenant.awaited is not None or tenant.vm == vm]
    there = running.with_tenants(*_surely_there(counted, running, profile, catalog))
    return range_of_room(there, profile, catalog)


def _surely_there(counted: Iterable[Tenant], there: GpuState, profile: str, catalog: Catalog) -> list[Tenant]:
    """Those of what a plan counts on the GPU that take room for this profile, however the running vGPUs lie.

    A vGPU of the profile itself takes a slot or finds none, and then there is none. Another may find no room where
    there is some for the profile.
    """
    surely = []
    for tenant in counted:
        fits = tenant.profile == profile or room_for(there, tenant.profile, catalog).at_least
        if tenant.certain and fits:
            surely.append(tenant)
            there = there.with_tenants(tenant)
    return surely


def _in_the_plan(state: GpuState, vm: Vm) -> Iterator[tuple[str, list[Tenant]]]:
    """What a plan counts on the GPU although it does not run: in words whose it is, and the vGPUs."""
    for awaited in Awaited:
        tenants = [tenant for tenant in state.tenants if tenant.awaited is awaited and tenant.vm != vm.ref]
        if tenants:
            yield awaited.value, tenants
    own = [tenant for tenant in state.tenants if tenant.vm == vm.ref]
    if own:
        yield "this VM's first vGPUs", own


def _slots_of(profile: str, room: Slots) -> str:
    if room.at_most is None:
        return f"its room for {profile} is"
    count = str(room.at_most) if room.exact else f"{room.at_least} to {room.at_most}"
    return f"its {count} slot for {profile} is" if count == "1" else f"its {count} slots for {profile} are"


def _held_by(tenants: Iterable[Tenant]) -> str:
    names = sorted({tenant.name for tenant in tenants})
    return f"; held by {', '.join(names)}" if names else ""


def refuse_vgpus(gpu: PhysicalGpu, subject: str) -> Rejection | None:
    """Why a GPU is in the wrong mode for any vGPU; None = it serves vGPUs.

    Sources: vSphere API, HostGraphicsInfo.graphicsType; NVIDIA vGPU docs: a change of the type takes effect when Xorg
    or the host restarts.
    """
    if gpu.passthrough is not None and gpu.passthrough.active:
        return Rejection(subject, "is given to DirectPath I/O", hint="attach it whole: --device")
    if gpu.graphics_type is GraphicsType.SHARED_DIRECT:
        return None
    wanted, now = GraphicsType.SHARED_DIRECT.value, gpu.graphics_type
    if gpu.configured_graphics_type is GraphicsType.SHARED_DIRECT:
        hint = "the change is configured: restart Xorg on the host, or the host"
        return Rejection(subject, "graphics type in force", wanted, now.value if now else "unknown", hint=hint)
    if now is None:
        return Rejection(subject, "its graphics type cannot be read")
    return Rejection(subject, "graphics type", wanted, now.value, hint="set it to Shared Direct on the host")


def host_order(states: Iterable[GpuState], host: Host, catalog: Catalog) -> list[GpuState]:
    """The GPUs in the order in which the host is expected to try them; ties go to the lowest address.

    In same-size mode by the host's policy: `performance` the GPU with the fewest VMs, `consolidation` the one with the
    most (vSphere API, HostGraphicsConfig.sharedPassthruAssignmentPolicy); in mixed-size mode the least used; in MIG
    mode as they come (NVIDIA AI Enterprise docs; the policy is ignored there).
    """

    def key(state: GpuState) -> tuple[int, int]:
        match state.gpu.vgpu_mode:
            case VgpuMode.MULTI_INSTANCE:
                return (2, 0)
            case VgpuMode.MIXED_SIZE:
                return (1, used_mib(state, catalog))
            case _ if host.assignment_policy is AssignmentPolicy.CONSOLIDATION:
                return (0, -len(state.vm_names))
            case _:
                return (0, len(state.vm_names))

    return sorted(states, key=lambda state: (*key(state), state.gpu.address))


def used_mib(state: GpuState, catalog: Catalog) -> int:
    """Frame buffer that the vGPUs on the GPU hold, as far as the catalogue knows them."""
    profiles = (catalog.profile(tenant.profile) for tenant in state.tenants)
    return sum(profile.framebuffer_mib for profile in profiles if profile is not None)


def judge_device(demand: WantsDirectPath, vm: Vm, host: Host, inventory: Inventory) -> Rejection | str:
    """A doubt about the device ("" = certain), which does not name it, or why the host cannot give it to the VM."""
    subject = f"{host.name} {demand.address}"
    holder = holders(host, inventory).get(demand.address)
    if holder is not None and holder != vm.ref:
        return _is_held(subject, holder, inventory)
    gpu = host.gpu(demand.address)
    if gpu is not None:
        return _refuse_inactive(gpu, subject) or ""
    if not host.readable:
        return Rejection(subject, "the devices of its host cannot be read")
    if host.config_target is None:
        if host.ref != vm.host:
            return Rejection(subject, "is no GPU of this host")
        return "not a GPU that the host lists; its passthrough state is not checked"
    addresses = [target.address for target in host.config_target.passthrough]
    if demand.address in addresses:
        return ""
    known = ", ".join(str(address) for address in sorted(addresses)) or "none"
    return Rejection(subject, f"is no passthrough device of this host (it has: {known})")


def _is_held(subject: str, holder: str, inventory: Inventory) -> Rejection:
    vm = inventory.vms.get(holder)
    name = vm.name if vm is not None else holder
    match vm.awaited if vm is not None else None:
        case None:
            return Rejection(subject, f"is held by {name}, which runs", hint=f"stop {name}, or choose another device")
        case Awaited.RETURN:
            return Rejection(subject, f"is kept for {name}", hint="choose another device, or --suspended ignore")
        case Awaited.REQUEST:
            return Rejection(subject, f"is taken by {name}, an earlier request", hint="choose another device")


def _refuse_inactive(gpu: PhysicalGpu, subject: str) -> Rejection | None:
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


def find_free_device(
    demand: WantsDynamic,
    vm: Vm,
    taken: Collection[PciAddress],
    host: Host,
    inventory: Inventory,
    node: int | None = None,
    missing: int = 1,
) -> PciAddress | Rejection:
    """A device of the host (of its NUMA node `node`) that fits and nobody holds, lowest address first; or why none.

    `missing` is how many such devices the VM has yet to be given, this one among them.
    """
    fitting = [gpu for gpu in host.gpus if matches_type(gpu, demand) and node in (None, gpu.numa_node)]
    active = sorted(gpu.address for gpu in fitting if gpu.passthrough is not None and gpu.passthrough.active)
    held_by_others = {address: ref for address, ref in holders(host, inventory).items() if ref != vm.ref}
    free = [address for address in active if address not in held_by_others and address not in taken]
    if free:
        return free[0]
    wanted = f"device of type {_types(demand)}" + (f" with label {demand.label}" if demand.label else "")
    where = "" if node is None else f" on NUMA node {node}"
    if not active:
        return Rejection(host.name, f"has no {wanted} in passthrough{where}")
    held = [held_by_others[address] for address in active if address in held_by_others]
    who = ", ".join(sorted({_holder(ref, inventory) for ref in held}))
    rule = f"{wanted} that is free{where} ({len(active)} there" + (f", held by {who})" if who else ")")
    return Rejection(host.name, rule, missing + sum(address in taken for address in active), len(active) - len(held))


def _holder(ref: str, inventory: Inventory) -> str:
    vm = inventory.vms.get(ref)
    if vm is None:
        return ref
    return f"{vm.name} (an earlier request)" if vm.awaited is Awaited.REQUEST else vm.name


def holders(host: Host, inventory: Inventory) -> dict[PciAddress, str]:
    """Which VM holds each passthrough device of the host now: as the host binds them, and as running VMs carry them."""
    holder_of = {binding.address: binding.vm for binding in host.bindings if _may_hold(binding.vm, inventory)}
    for vm in inventory.vms_on(host):
        if vm.power is not PowerState.ON:
            continue
        for device in vm.devices or ():
            match device:
                case DirectPathDevice(address=address):
                    holder_of[address] = vm.ref
                case DynamicDevice(assigned=PciAddress() as address):
                    holder_of[address] = vm.ref
                case _:
                    pass
    return holder_of


def _may_hold(ref: str, inventory: Inventory) -> bool:
    """A VM that is off holds no device, though its binding may be listed for a while."""
    vm = inventory.vms.get(ref)
    return vm is None or vm.power is not PowerState.OFF


def matches_type(gpu: PhysicalGpu, demand: WantsDynamic) -> bool:
    if (gpu.vendor_id, gpu.device_id) not in demand.allowed:
        return False
    return demand.label is None or (gpu.passthrough is not None and gpu.passthrough.label == demand.label)


def _types(demand: WantsDynamic) -> str:
    return " or ".join(f"{vendor:04x}:{device:04x}" for vendor, device in demand.allowed)
