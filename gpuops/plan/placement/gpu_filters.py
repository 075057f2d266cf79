"""Whether a GPU has a slot for a vGPU, or a host can give a PCI device whole; and in which order hosts
choose.

`seating.py`, `candidates.py`, `explain.py` and `fleet/states.py` call it.

Sources: vSphere API, HostPciPassthruInfo (enabled = configured, active = in force) and HostAssignableHardwareBinding;
HostGraphicsInfo.graphicsType; HostGraphicsConfig.sharedPassthruAssignmentPolicy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import Final, TypeVar, cast

from gpuops.advise.capacity import Slots
from gpuops.advise.expected_start import with_expected
from gpuops.advise.occupancy import GpuState, Tenant, may_run
from gpuops.advise.room import range_of_room, room_for
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, DirectPathDevice, DynamicDevice, PowerState, Vm
from gpuops.plan.core.command_line import command, hosts_called
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.wanted import WantsDirectPath, WantsDynamic, WantsVgpu

_HELD: Final = "; held by "
_Answer = TypeVar("_Answer")
_Question = Callable[[GpuState, str, str, Catalog], _Answer]


def _once_for_alike(ask: _Question[_Answer]) -> _Question[_Answer]:
    """The same question, whose answer names nobody, worked out once for all GPUs of a fleet that are alike."""

    @wraps(ask)
    def answer(state: GpuState, profile: str, vm: str, catalog: Catalog) -> _Answer:
        known = catalog.worked_out.setdefault(ask, {})
        key = (profile, state.alike(vm))
        found = known.get(key, known)
        if found is known:
            found = known[key] = ask(state, profile, vm, catalog)
        return cast("_Answer", found)

    return answer


@dataclass(frozen=True, slots=True)
class _NoSlot:
    """Why GPUs that are alike have no slot; who is named differs from one to the next."""

    rule: str
    named: tuple[int, ...] = ()
    """Numbers of the tenants whose VMs follow the rule."""
    rest: str = ""
    counted: bool = False
    of_model: bool = True
    """Whether the GPU may be of the profile's model."""

    def of(self, state: GpuState, subject: str) -> Rejection:
        names = ", ".join(sorted({state.tenants[number].name for number in self.named}))
        rule = f"{self.rule}{names}{self.rest}"
        return Rejection(subject, rule, 1, 0, "slot") if self.counted else Rejection(subject, rule)


def judge_slot(state: GpuState, demand: WantsVgpu, vm: Vm, host: Host, catalog: Catalog) -> Rejection | str:
    """A doubt about the slot ("" = certain), or why the GPU has none beside what runs and the VM's own vGPUs so far.

    A doubt does not name the GPU.
    """
    verdict = _verdict(state, demand.profile, vm.ref, catalog)
    return verdict if isinstance(verdict, str) else _worded(verdict, state, host)


def judge_slots(
    states: Iterable[GpuState], profile: str, vm: Vm, host: Host, catalog: Catalog
) -> Iterator[tuple[GpuState, Rejection | str]]:
    """The same of the GPUs that may be of the profile's model, in the order in which the host tries them."""
    verdicts = {state.gpu.address: _verdict(state, profile, vm.ref, catalog) for state in states}
    able = [s for s in states if isinstance(found := verdicts[s.gpu.address], str) or found.of_model]
    for state in host_order(able, host, catalog):
        verdict = verdicts[state.gpu.address]
        yield state, verdict if isinstance(verdict, str) else _worded(verdict, state, host)


def _worded(verdict: _NoSlot, state: GpuState, host: Host) -> Rejection:
    subject = f"{host.name} {state.gpu.address}"
    return refuse_vgpus(state.gpu, subject) or verdict.of(state, subject)


@_once_for_alike
def slots_in_turn(state: GpuState, profile: str, vm: str, catalog: Catalog) -> tuple[int, int]:
    """How many vGPUs of the VM the GPU is given one after another: for certain, and with doubtful ones."""
    sure = count = 0
    while isinstance(verdict := _verdict(state, profile, vm, catalog), str):
        count += 1
        sure += not verdict
        state = with_expected(state, Tenant(vm, "", profile), catalog)
    return sure, count


@_once_for_alike
def _verdict(state: GpuState, profile: str, vm: str, catalog: Catalog) -> _NoSlot | str:
    of_model = may_run(state.gpu, profile, catalog) is not False
    if refuse_vgpus(state.gpu, "") is not None:
        return _NoSlot("is in the wrong mode", of_model=of_model)
    slots = room_for(state, profile, catalog)
    if not of_model:
        return _NoSlot(slots.because, of_model=False)
    if not slots.possible:
        return _no_slot(state, profile, vm, catalog)
    if state.unclear:
        return _NoSlot(f"what runs on it is not known: {state.unclear}")
    return "" if slots.at_least else slots.because


def _no_slot(state: GpuState, profile: str, vm: str, catalog: Catalog) -> _NoSlot:
    """Why the GPU has no slot: for what runs there, or for what takes the slots that this leaves.

    Only what surely runs there is said to. What may run there, and what a plan counts beside it, is asked in turn until
    no slot is left.
    """
    running = [tenant for tenant in state.tenants if tenant.awaited is None and tenant.vm != vm]
    there = replace(state, tenants=tuple(tenant for tenant in running if tenant.certain))
    now = room_for(there, profile, catalog)
    if not now.possible:
        return _NoSlot(now.because + _HELD * bool(there.tenants), _numbers(there.tenants, state), counted=True)
    unsure = [tenant for tenant in running if not tenant.certain]
    there = there.with_tenants(*unsure)
    if not room_for(there, profile, catalog).possible:
        rule = f"no slot for {profile} can be promised: which vGPUs of "
        return _NoSlot(rule, _numbers(unsure, state), " run on it vCenter does not tell")
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
    others = [tenant for tenant in counted if tenant.vm != vm]
    held = _HELD if others else ""
    return _NoSlot(f"{room} {verb} by {' and '.join(takers)}{held}", _numbers(others, state))


def _numbers(tenants: Collection[Tenant], state: GpuState) -> tuple[int, ...]:
    """Where they are among the tenants, each vGPU of a VM too: on a GPU that is alike it may be another VM's."""
    return tuple(number for number, tenant in enumerate(state.tenants) if tenant in tenants)


@_once_for_alike
def range_beside(state: GpuState, profile: str, vm: str, catalog: Catalog) -> Slots | None:
    """Room for the profile from the worst to the best: if what a plan counts there in doubt finds no place on it; None
    = the GPU is of another model."""
    if may_run(state.gpu, profile, catalog) is False:
        return None
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


def _in_the_plan(state: GpuState, vm: str) -> Iterator[tuple[str, list[Tenant]]]:
    """What a plan counts on the GPU although it does not run: in words whose it is, and the vGPUs."""
    for awaited in Awaited:
        tenants = [tenant for tenant in state.tenants if tenant.awaited is awaited and tenant.vm != vm]
        if tenants:
            yield awaited.value, tenants
    own = [tenant for tenant in state.tenants if tenant.vm == vm]
    if own:
        yield "this VM's first vGPUs", own


def _slots_of(profile: str, room: Slots) -> str:
    if room.at_most is None:
        return f"its room for {profile} is"
    count = str(room.at_most) if room.exact else f"{room.at_least} to {room.at_most}"
    return f"its {count} slot for {profile} is" if count == "1" else f"its {count} slots for {profile} are"


def refuse_vgpus(gpu: PhysicalGpu, subject: str) -> Rejection | None:
    """Why a GPU is in the wrong mode for any vGPU, or too sick for a new one; None = it serves vGPUs.

    Sources: vSphere API, HostGraphicsInfo.graphicsType; NVIDIA vGPU docs: a change of the type takes effect when Xorg
    or the host restarts.
    """
    if gpu.passthrough is not None and gpu.passthrough.active:
        return Rejection(subject, "is given to DirectPath I/O", hint="attach it whole: --device")
    if gpu.vgpu_obstacle:
        return Rejection(subject, gpu.vgpu_obstacle, hint="reboot the host")
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
    mode as they come (NVIDIA AI Enterprise docs; the policy is ignored there). (assumption: gpu-choice)
    """

    def key(state: GpuState) -> tuple[int, int]:
        match state.gpu.vgpu_mode:
            case VgpuMode.MULTI_INSTANCE:
                return (2, 0)
            case VgpuMode.MIXED_SIZE:
                return (1, used_mib(state, catalog))
            case _ if host.assignment_policy is AssignmentPolicy.CONSOLIDATION:
                return (0, -len({tenant.name for tenant in state.tenants}))
            case _:
                return (0, len({tenant.name for tenant in state.tenants}))

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
    device = host.device(demand.address)
    if device is not None:
        return _refuse_inactive(device, host, subject) or ""
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


def _refuse_inactive(gpu: PhysicalGpu | OtherDevice, host: Host, subject: str) -> Rejection | None:
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
    if isinstance(gpu, OtherDevice):
        on = command("passthrough on", device=str(gpu.address), host=hosts_called(host.name))
        hint = f"{on} gives it to VMs"
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
    fitting = [gpu for gpu in host.devices if matches_type(gpu, demand) and node in (None, gpu.numa_node)]
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


def matches_type(gpu: PhysicalGpu | OtherDevice, demand: WantsDynamic) -> bool:
    if (gpu.vendor_id, gpu.device_id) not in demand.allowed:
        return False
    return demand.label is None or (gpu.passthrough is not None and gpu.passthrough.label == demand.label)


def _types(demand: WantsDynamic) -> str:
    return " or ".join(f"{vendor:04x}:{device:04x}" for vendor, device in demand.allowed)
