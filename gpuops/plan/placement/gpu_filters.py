"""Whether a GPU has a slot for a vGPU, whether a host can give a PCI device to a VM, and in which order hosts choose.

Sources: vSphere API, HostPciPassthruInfo (enabled = configured, active = in force) and HostAssignableHardwareBinding;
HostGraphicsInfo.graphicsType; HostGraphicsConfig.sharedPassthruAssignmentPolicy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import Final, TypeVar, cast

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import GpuState, Tenant, may_run, range_of_room, room_for, with_expected
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, DirectPathDevice, DynamicDevice, PowerState, Vm
from gpuops.plan.core.command_line import command, hosts_called
from gpuops.plan.core.rejection import READ_HOST, Rejection
from gpuops.plan.placement.vm_demand import WantsDirectPath, WantsDynamic, WantsVgpu

_HELD: Final = "; held by "
_Answer = TypeVar("_Answer")
_Question = Callable[[GpuState, str, str, Catalog], _Answer]


def _cached_for_equal_gpus(judge: _Question[_Answer]) -> _Question[_Answer]:
    """Cache the answers of this function for all GPUs of a fleet that are alike. An answer must not name a VM."""

    @wraps(judge)
    def cached_judge(state: GpuState, profile: str, vm: str, catalog: Catalog) -> _Answer:
        cached_answers = catalog.worked_out.setdefault(judge, {})
        key = (profile, state.placement_key(vm))
        # None is a valid answer, so the cache itself stands for "no answer yet".
        cached_answer = cached_answers.get(key, cached_answers)
        if cached_answer is cached_answers:
            cached_answer = cached_answers[key] = judge(state, profile, vm, catalog)
        return cast("_Answer", cached_answer)

    return cached_judge


@dataclass(frozen=True, slots=True)
class _NoSlot:
    """Why GPUs that are alike have no slot. The VMs that the reason names differ from GPU to GPU."""

    rule: str
    named_tenants: tuple[int, ...] = ()
    """Positions of the tenants whose names follow `rule`."""
    after_names: str = ""
    """Text that follows the names."""
    with_count: bool = False
    """Whether the rejection says that one slot is needed and none is free."""
    may_be_of_model: bool = True
    """Whether the GPU may be of the profile's model."""

    def as_rejection(self, state: GpuState, subject: str) -> Rejection:
        names = ", ".join(sorted({state.tenants[position].name for position in self.named_tenants}))
        rule = f"{self.rule}{names}{self.after_names}"
        return Rejection(subject, rule, 1, 0, "slot") if self.with_count else Rejection(subject, rule)


def judge_slot(state: GpuState, demand: WantsVgpu, vm: Vm, host: Host, catalog: Catalog) -> Rejection | str:
    """Return a doubt about the slot ("" = certain), or why the GPU has no slot next to the running vGPUs and those that
    this VM already got. A doubt does not name the GPU."""
    verdict = _verdict(state, demand.profile, vm.ref, catalog)
    return verdict if isinstance(verdict, str) else _as_rejection(verdict, state, host)


def judge_slots(
    states: Iterable[GpuState], profile: str, vm: Vm, host: Host, catalog: Catalog
) -> Iterator[tuple[GpuState, Rejection | str]]:
    """Yield the GPUs that may be of the profile's model, in the order in which the host tries them, each with the
    refusal or with a doubt about its slot ("" = it surely has one)."""
    for state in host_order(states, host, catalog):
        verdict = _verdict(state, profile, vm.ref, catalog)
        if isinstance(verdict, str):
            yield state, verdict
        elif verdict.may_be_of_model:
            yield state, _as_rejection(verdict, state, host)


def _as_rejection(verdict: _NoSlot, state: GpuState, host: Host) -> Rejection:
    subject = f"{host.name} {state.gpu.address}"
    return refuse_vgpus(state.gpu, subject) or verdict.as_rejection(state, subject)


@_cached_for_equal_gpus
def slots_in_turn(state: GpuState, profile: str, vm: str, catalog: Catalog) -> tuple[int, int]:
    """Return how many vGPUs of the VM fit on the GPU one after another: (for certain, including doubtful ones)."""
    sure_count = count = 0
    while isinstance(doubt := _verdict(state, profile, vm, catalog), str):
        count += 1
        sure_count += not doubt
        state = with_expected(state, Tenant(vm, "", profile), catalog)
    return sure_count, count


@_cached_for_equal_gpus
def _verdict(state: GpuState, profile: str, vm: str, catalog: Catalog) -> _NoSlot | str:
    """Return why the GPU has no slot for the profile, or a doubt about its slot; empty = it surely has one."""
    may_be_of_model = may_run(state.gpu, profile, catalog) is not False
    # Only whether it refuses matters here; `_as_rejection` asks again with the name of the GPU.
    if refuse_vgpus(state.gpu, "") is not None:
        return _NoSlot("is in the wrong mode", may_be_of_model=may_be_of_model)
    slots = room_for(state, profile, catalog)
    if not may_be_of_model:
        return _NoSlot(slots.because, may_be_of_model=False)
    if not slots.possible:
        return _explain_no_slot(state, profile, vm, catalog)
    if state.unclear:
        return _NoSlot(f"what runs on it is not known: {state.unclear}")
    return "" if slots.at_least else slots.because


def _explain_no_slot(state: GpuState, profile: str, vm: str, catalog: Catalog) -> _NoSlot:
    """Return why the GPU has no slot: because of the VMs that run there, or of those that take the remaining slots.

    The reason names as running only the VMs that surely run there. VMs that may run there and VMs that the plan counts
    are added one group after the other, until no slot is left.
    """
    # 1. VMs that surely run on the GPU.
    running = [tenant for tenant in state.tenants if tenant.awaited is None and tenant.vm != vm]
    running_state = replace(state, tenants=tuple(tenant for tenant in running if tenant.certain))
    room_now = room_for(running_state, profile, catalog)
    if not room_now.possible:
        # `_NoSlot.as_rejection` writes the names of the VMs after the rule.
        rule = room_now.because + _HELD if running_state.tenants else room_now.because
        return _NoSlot(rule, _tenant_positions(running_state.tenants, state), with_count=True)
    # 2. VMs that may run on it.
    unsure = [tenant for tenant in running if not tenant.certain]
    running_state = running_state.with_tenants(*unsure)
    if not room_for(running_state, profile, catalog).possible:
        rule = f"no slot for {profile} can be promised: vCenter does not report which vGPUs of "
        return _NoSlot(rule, _tenant_positions(unsure, state), " run on it")
    # 3. VMs that the plan starts, one group after the other, until no slot is left.
    group_texts: list[str] = []
    planned: list[Tenant] = []
    for group_text, tenants in _planned_tenants(state, vm):
        group_texts.append(group_text)
        planned += tenants
        if not room_for(running_state.with_tenants(*planned), profile, catalog).possible:
            break
    room_text = f"its room for {profile} is" if unsure else _describe_slots(profile, room_now)
    all_certain = len(_certain_takers(planned, running_state, profile, catalog)) == len(planned)
    verb = "taken" if all_certain else "perhaps taken"
    other_tenants = [tenant for tenant in planned if tenant.vm != vm]
    held_by = _HELD if other_tenants else ""
    rule = f"{room_text} {verb} by {' and '.join(group_texts)}{held_by}"
    return _NoSlot(rule, _tenant_positions(other_tenants, state))


def _tenant_positions(tenants: Collection[Tenant], state: GpuState) -> tuple[int, ...]:
    """Return the positions of these among the GPU's tenants. On an equal GPU the same position may be another VM's."""
    return tuple(number for number, tenant in enumerate(state.tenants) if tenant in tenants)


@_cached_for_equal_gpus
def range_beside(state: GpuState, profile: str, vm: str, catalog: Catalog) -> Slots | None:
    """Return the least and the most room for the profile next to the running vGPUs and what the plan surely adds to the
    GPU; None if the GPU is of another model."""
    if may_run(state.gpu, profile, catalog) is False:
        return None
    running = replace(state, tenants=tuple(t for t in state.tenants if t.awaited is None and t.vm != vm))
    planned = [tenant for tenant in state.tenants if tenant.awaited is not None or tenant.vm == vm]
    occupied_state = running.with_tenants(*_certain_takers(planned, running, profile, catalog))
    return range_of_room(occupied_state, profile, catalog)


def _certain_takers(planned: Iterable[Tenant], state: GpuState, profile: str, catalog: Catalog) -> list[Tenant]:
    """Return the tenants of the plan that take room for this profile however the running vGPUs lie on the GPU.

    A vGPU of the profile itself takes a slot, or there is no slot left anyway. A vGPU of another profile may find no
    room although the profile has some.
    """
    certain_takers = []
    for tenant in planned:
        fits = tenant.profile == profile or room_for(state, tenant.profile, catalog).at_least
        if tenant.certain and fits:
            certain_takers.append(tenant)
            state = state.with_tenants(tenant)
    return certain_takers


def _planned_tenants(state: GpuState, vm: str) -> Iterator[tuple[str, list[Tenant]]]:
    """Yield the vGPUs that the plan counts on the GPU although they do not run yet, with words for the VMs they are
    for."""
    for awaited in Awaited:
        tenants = [tenant for tenant in state.tenants if tenant.awaited is awaited and tenant.vm != vm]
        if tenants:
            yield awaited.value, tenants
    own_tenants = [tenant for tenant in state.tenants if tenant.vm == vm]
    if own_tenants:
        yield "this VM's first vGPUs", own_tenants


def _describe_slots(profile: str, room: Slots) -> str:
    if room.at_most is None:
        return f"its room for {profile} is"
    count = str(room.at_most) if room.exact else f"{room.at_least} to {room.at_most}"
    return f"its {count} slot for {profile} is" if count == "1" else f"its {count} slots for {profile} are"


def refuse_vgpus(gpu: PhysicalGpu, subject: str) -> Rejection | None:
    """Return why a GPU takes no new vGPU: its mode is wrong, or its health does not allow one; None = it takes vGPUs.

    Sources: vSphere API, HostGraphicsInfo.graphicsType; NVIDIA vGPU docs: a change of the type takes effect when Xorg
    or the host restarts.
    """
    if gpu.is_active_in_passthrough:
        return Rejection(subject, "is given to DirectPath I/O", hint="use --device to attach the complete GPU")
    if gpu.vgpu_obstacle:
        return Rejection(subject, gpu.vgpu_obstacle, hint="reboot the host")
    if gpu.graphics_type is GraphicsType.SHARED_DIRECT:
        return None
    required_type = GraphicsType.SHARED_DIRECT.value
    current_type = gpu.graphics_type.value if gpu.graphics_type else "unknown"
    if gpu.configured_graphics_type is GraphicsType.SHARED_DIRECT:
        hint = "the change is configured: restart Xorg on the host, or the host"
        return Rejection(subject, "graphics type in force", required_type, current_type, hint=hint)
    if gpu.graphics_type is None:
        return Rejection(subject, "its graphics type cannot be read", hint=READ_HOST)
    hint = "set it to Shared Direct on the host"
    return Rejection(subject, "graphics type", required_type, current_type, hint=hint)


def host_order(states: Iterable[GpuState], host: Host, catalog: Catalog) -> list[GpuState]:
    """Return the GPUs in the order in which the host is expected to try them; ties go to the lowest address.

    In same-size mode the host's policy decides: `performance` takes the GPU with the fewest VMs, `consolidation` the
    one with the most (vSphere API, HostGraphicsConfig.sharedPassthruAssignmentPolicy). In mixed-size mode the least
    used GPU comes first, in MIG mode the lowest address: the policy is ignored there (NVIDIA AI Enterprise docs).
    (assumption: gpu-choice)
    """

    # The first number separates GPUs in different modes, the second orders those in the same mode.
    def preference(state: GpuState) -> tuple[int, int]:
        match state.gpu.vgpu_mode:
            case VgpuMode.MULTI_INSTANCE:
                return (2, 0)
            case VgpuMode.MIXED_SIZE:
                return (1, used_mib(state, catalog))
            case _ if host.assignment_policy is AssignmentPolicy.CONSOLIDATION:
                return (0, -len({tenant.name for tenant in state.tenants}))
            case _:
                return (0, len({tenant.name for tenant in state.tenants}))

    return sorted(states, key=lambda state: (*preference(state), state.gpu.address))


def used_mib(state: GpuState, catalog: Catalog) -> int:
    """Return the frame buffer (MiB) that the vGPUs on the GPU hold, as far as the catalogue knows them."""
    profiles = (catalog.profile(tenant.profile) for tenant in state.tenants)
    return sum(profile.framebuffer_mib for profile in profiles if profile is not None)


def judge_device(demand: WantsDirectPath, vm: Vm, host: Host, inventory: Inventory) -> Rejection | str:
    """Return a doubt about the device ("" = certain) without its name, or why the host cannot give it to the VM."""
    subject = f"{host.name} {demand.address}"
    holder = holders(host, inventory).get(demand.address)
    if holder is not None and holder != vm.ref:
        return _refuse_held(subject, holder, inventory)
    device = host.device(demand.address)
    if device is not None:
        return _refuse_inactive(device, host, subject) or ""
    if not host.readable:
        return Rejection(subject, "the devices of its host cannot be read", hint=READ_HOST)
    if host.config_target is None:
        if host.ref != vm.host:
            hint = "gpuops inventory --hosts shows the addresses of its GPUs"
            return Rejection(subject, "is not a GPU of this host", hint=hint)
        return "not a GPU that the host lists; its passthrough state is not checked"
    addresses = [target.address for target in host.config_target.passthrough]
    if demand.address in addresses:
        return ""
    address_list = ", ".join(str(address) for address in sorted(addresses)) or "none"
    hint = f"choose one of its devices, or switch passthrough on for {demand.address} on the host"
    return Rejection(subject, f"is not a passthrough device of this host (it has: {address_list})", hint=hint)


def _refuse_held(subject: str, holder: str, inventory: Inventory) -> Rejection:
    vm = inventory.vms.get(holder)
    name = vm.name if vm is not None else holder
    match vm.awaited if vm is not None else None:
        case None:
            return Rejection(subject, f"is held by {name}, which runs", hint=f"stop {name}, or choose another device")
        case Awaited.RETURN:
            hint = "choose another device, or use --suspended ignore"
            return Rejection(subject, f"is kept for the return of {name}", hint=hint)
        case Awaited.REQUEST:
            return Rejection(subject, f"is taken by {name}, an earlier request", hint="choose another device")


def _refuse_inactive(gpu: PhysicalGpu | OtherDevice, host: Host, subject: str) -> Rejection | None:
    """Return why the device cannot be given to a VM; None = it is active in passthrough."""
    state = gpu.passthrough
    if state is None:
        return Rejection(subject, "its passthrough state cannot be read", hint=READ_HOST)
    if state.active and state.enabled:
        return None
    if state.reboot_pending:
        change = "is switched on" if state.enabled else "is switched off"
        rule = f"its passthrough {change} and waits for a reboot of the host"
        return Rejection(subject, rule, hint="reboot the host")
    if not state.capable:
        return Rejection(subject, "cannot be passed through (the host reports that it is not capable)")
    hint = "switch passthrough on for it on the host; vGPUs can then no longer use it"
    if isinstance(gpu, OtherDevice):
        switch_on = command("host passthrough on", device=str(gpu.address), host=hosts_called(host.name))
        hint = f"{switch_on} makes it available to VMs"
    return Rejection(subject, "is not switched to passthrough", hint=hint)


def find_free_device(
    demand: WantsDynamic,
    vm: Vm,
    taken_addresses: Collection[PciAddress],
    host: Host,
    inventory: Inventory,
    node: int | None = None,
    missing: int = 1,
) -> PciAddress | Rejection:
    """Return the free device with the lowest address that fits, on NUMA node `node` if given, or why there is no such
    device. `missing` is how many such devices the VM still needs, including this one."""
    fitting = [gpu for gpu in host.devices if matches_type(gpu, demand) and node in (None, gpu.numa_node)]
    active = sorted(gpu.address for gpu in fitting if gpu.passthrough is not None and gpu.passthrough.active)
    held_by_others = {address: ref for address, ref in holders(host, inventory).items() if ref != vm.ref}
    free = [address for address in active if address not in held_by_others and address not in taken_addresses]
    if free:
        return free[0]
    types = " or ".join(f"{vendor_id:04x}:{device_id:04x}" for vendor_id, device_id in demand.allowed)
    description = f"device of type {types}" + (f" with label {demand.label}" if demand.label else "")
    where = "" if node is None else f" on NUMA node {node}"
    if not active:
        return Rejection(host.name, f"has no {description} in passthrough{where}")
    held_refs = [held_by_others[address] for address in active if address in held_by_others]
    holder_names = set()
    for ref in held_refs:
        holder = inventory.vms.get(ref)
        earlier = " (an earlier request)" if holder is not None and holder.awaited is Awaited.REQUEST else ""
        holder_names.add(ref if holder is None else f"{holder.name}{earlier}")
    held_by = f", held by {', '.join(sorted(holder_names))}" if holder_names else ""
    rule = f"{description} that is free{where} ({len(active)} there{held_by})"
    # `active` includes the devices that this VM already got, so they count as needed as well.
    needed = missing + sum(address in taken_addresses for address in active)
    return Rejection(host.name, rule, needed, len(active) - len(held_refs))


def holders(host: Host, inventory: Inventory) -> dict[PciAddress, str]:
    """Return the ref of the VM that holds each passthrough device: by the host's bindings and the running VMs."""
    holder_of: dict[PciAddress, str] = {}
    for binding in host.bindings:
        holder = inventory.vms.get(binding.vm)
        # A VM that is off holds no device, though its binding may be listed for a while.
        if holder is None or holder.power is not PowerState.OFF:
            holder_of[binding.address] = binding.vm
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


def matches_type(gpu: PhysicalGpu | OtherDevice, demand: WantsDynamic) -> bool:
    if (gpu.vendor_id, gpu.device_id) not in demand.allowed:
        return False
    return demand.label is None or (gpu.passthrough is not None and gpu.passthrough.label == demand.label)
