"""Plans to give a VM vGPUs, whole GPUs or other devices, or a vendor device group: all that is requested, or nothing.

All reasons to refuse are collected and shown together. The plan is one reconfigure, with a stop, a move and a start of
the VM if the request allows them. `gpuops attach`, the Ansible module and `several.py` call it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, ClassVar

from gpuops.errors import ProfileUnknown, UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import GpuDevice, PowerState, Vm, passthru_number, pins_of
from gpuops.plan.core.command_line import Names, Option, VmName, word
from gpuops.plan.core.passthru_devices import gpu_names, is_no_gpu, option_of, signature
from gpuops.plan.core.plan import Plan, Wave, refuse
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, RelocateVm, Step
from gpuops.plan.core.versions import unsupported_option
from gpuops.plan.devices.goal import (
    Goal,
    GoalOrRejections,
    broken_groups,
    device_goal,
    devices_named,
    dynamic_goal,
    group_goal,
    kept_pins,
    only_requested,
    other_gpus,
    profile_meant,
    profiles_to_keep,
    vgpus,
    with_backings,
)
from gpuops.plan.devices.rules import Case, findings
from gpuops.plan.devices.settings import Fitting, change_of, warnings_of
from gpuops.plan.placement.explain import remote_memory, warn_of_displaced, warn_of_remote_memory
from gpuops.plan.placement.host_filters import AFFINITY_KEY, Headroom, node_shortages, unreachable
from gpuops.plan.placement.keep_free import KeepFreeOption, kept_profiles
from gpuops.plan.placement.multi_node import nodes_needed, place_near, share_of_vm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.select import place
from gpuops.plan.placement.vm_demand import NOTHING_KEPT, KeepFree, PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.vm.vm_blockers import (
    POWER_HELP,
    MoveMode,
    PowerPolicy,
    hosts_for,
    move_blockers,
    others_with_gpus,
    power_blockers,
    power_moves,
    state_blockers,
    suggest_move,
    suggest_other_hosts,
    unreadable_profiles,
)


@dataclass(frozen=True, slots=True)
class Attach:
    """The devices that a VM gets. Exactly one of `profile`, `device`, dynamic (`dynamic`, `label`, `device_type`) and
    `device_group` names the devices; the other fields limit what gpuops may do for them."""

    run_kind: ClassVar[str] = "attach"

    vm: VmName
    profile: Annotated[str | None, Option("vGPU profile: a100-3-20c.", "NAME", Names.PROFILES)] = None
    count: Annotated[int | None, Option("How many the VM has afterwards, not how many more; default one.", "N")] = None
    """None = one, or as many as it has and as it replaces."""
    device: Annotated[
        tuple[str, ...],
        Option(
            "A whole GPU or other device, DirectPath I/O: 0000:3b:00.0. May be repeated.", "PCI-ADDRESS", Names.DEVICES
        ),
    ] = ()
    dynamic: Annotated[bool, Option("Any whole GPU or other device of a PCI type, Dynamic DirectPath I/O.")] = False
    label: Annotated[str | None, Option("Hardware label of the dynamic device.", "LABEL", Names.LABELS)] = None
    device_type: Annotated[
        tuple[str, ...], Option("PCI type of the dynamic device: 10de:20f1. May be repeated.", "VENDOR:DEVICE")
    ] = ()
    device_group: Annotated[str | None, Option("Vendor device group: Nvidia:2@grid_a100d-80c%NVLink.", "NAME")] = None
    replace: Annotated[str | None, Option("Remove these: a profile, a PCI address or `dynamic`.", "OLD")] = None
    add: Annotated[bool, Option("Keep the VM's other GPU devices.")] = False
    move: Annotated[MoveMode | None, Option("cold: the VM may be moved, powered off, to a host that has the GPU.")] = (
        None
    )
    pin: Annotated[PinPolicy, Option("auto: bind a vGPU to one GPU where --numa required depends on it.")] = (
        PinPolicy.AUTO
    )
    numa: Annotated[NumaPolicy, Option("How much CPU, memory and GPU must share a NUMA node.")] = NumaPolicy.PREFERRED
    power: Annotated[PowerPolicy, Option(POWER_HELP)] = PowerPolicy.REFUSE
    host: Annotated[str | None, Option("The host that the VM must be on.", "HOST", Names.HOSTS)] = None
    """None = its own, or with a move the best."""
    keep_free: KeepFreeOption = ()

    def __post_init__(self) -> None:
        """Convert texts to enum members, and lists to tuples. Raises UsageError."""
        put = partial(object.__setattr__, self)  # the class is frozen: requests are compared and stored
        put("device", tuple(self.device))
        put("device_type", tuple(self.device_type))
        put("keep_free", tuple(self.keep_free))
        put("move", None if self.move is None else word(MoveMode, self.move, "move"))
        put("pin", word(PinPolicy, self.pin, "pin"))
        put("numa", word(NumaPolicy, self.numa, "numa"))
        put("power", word(PowerPolicy, self.power, "power"))
        kept_profiles(self.keep_free)

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        """Refs of the VMs whose devices the plan needs: those on hosts without GPUs are not read in bulk."""
        vm = inventory.find_vm(self.vm)
        return (vm.ref,) if vm.devices is None else ()

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Refs of the hosts whose QueryConfigTarget the plan needs: for static DirectPath and device groups."""
        if not self.device and self.device_group is None:
            return ()
        vm = inventory.find_vm(self.vm)
        hosts = hosts_for(vm, self.host, self.move, inventory, any_device=bool(self.device))
        if len(hosts) == 1 or self.device_group:
            return tuple(host.ref for host in hosts)
        addresses = {PciAddress.parse(text) for text in self.device}
        # The VM's own host may have the device without listing it as a GPU.
        return tuple(
            host.ref for host in hosts if host.ref == vm.host or all(host.device(address) for address in addresses)
        )

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Plan the attachment in this snapshot. Raises UsageError for unknown names and impossible options."""
        self._check()
        vm = inventory.find_vm(self.vm)
        unsupported = unsupported_option(
            inventory.api_version,
            dynamic=self._is_dynamic,
            label=self.label is not None,
            group=self.device_group is not None,
        )
        if unsupported is not None:
            return refuse(Rejection(vm.name, unsupported, hint="omit this option, or use a newer vCenter"))
        hosts = hosts_for(vm, self.host, self.move, inventory, any_device=bool(self.device) or self._is_dynamic)
        blockers = (*move_blockers(vm, hosts, self.move, inventory), *state_blockers(vm))
        if vm.devices is None:
            # the first host is its own or the named one: that it is unreachable may be why no devices were read
            return refuse(*blockers, *filter(None, map(unreachable, hosts[:1])))
        old = devices_named(self.replace, vm) if self.replace else ()
        goal = self._goal(vm, old, hosts, inventory, catalog)
        if not isinstance(goal, Goal):
            suggestions = self._suggest_hosts_with_devices(vm, old, hosts, inventory)
            return refuse(*blockers, *power_blockers(vm, self.power), *goal, *suggestions)
        keep = KeepFree(profiles_to_keep(self.keep_free, inventory, catalog), claims=True)
        request = ResolvedAttach(vm, goal, hosts, self.numa, self.pin, self.power, inventory, catalog, keep)
        other_device_rejections = self._refuse_other_devices(vm, goal, old)
        device_rejections = (*other_device_rejections, *broken_groups(vm, goal))
        if not device_rejections and has_all_devices(request):
            return plan_unchanged_vm(request, blockers)
        if (
            other_device_rejections
        ):  # plan only the requested devices, so that every reason holds whether or not the others stay
            request = replace(request, goal=only_requested(goal))
        return plan_attachment(request, (*blockers, *power_blockers(vm, self.power), *device_rejections))

    def _check(self) -> None:
        given_options = [self.profile is not None, bool(self.device), self._is_dynamic, self.device_group is not None]
        if sum(given_options) != 1:
            raise UsageError(
                "attach needs exactly one of --profile, --device, --dynamic and --device-group",
                hint="attach different devices one after another, with --add",
            )
        if self.count is not None and (self.device or self.device_group):
            raise UsageError("--count cannot be combined with --device or --device-group", hint="remove --count")
        if self.count is not None and self.count < 1:
            raise UsageError(f"--count {self.count} is too small", hint="give a number of vGPUs or devices, 1 or more")

    @property
    def _is_dynamic(self) -> bool:
        return self.dynamic or self.label is not None or bool(self.device_type)

    def _goal(
        self, vm: Vm, old: tuple[GpuDevice, ...], hosts: tuple[Host, ...], inventory: Inventory, catalog: Catalog
    ) -> GoalOrRejections:
        """Return the devices that the VM will have, or why they cannot be determined."""
        if self.device:
            addresses = [PciAddress.parse(text) for text in self.device]
            return device_goal(vm, addresses, hosts[0] if hosts else None, old)
        if self.device_group is not None:
            return group_goal(vm, self.device_group, hosts, old)
        if self._is_dynamic:
            return dynamic_goal(vm, self.device_type, self.label, self.count, hosts, old)
        assert self.profile is not None, "_check lets exactly one kind pass"
        try:
            profile = profile_meant(self.profile, vm, hosts[0] if hosts else None, inventory, catalog)
        except ProfileUnknown:
            unread_hosts = unreadable_profiles(vm, hosts, inventory)
            if not unread_hosts:
                raise
            return unread_hosts
        return vgpus(vm, profile, self.count, [device for device in old if signature(device) != f"vgpu {profile}"])

    def _suggest_hosts_with_devices(
        self, vm: Vm, old: tuple[GpuDevice, ...], hosts: tuple[Host, ...], inventory: Inventory
    ) -> tuple[Rejection, ...]:
        """Return a rejection that names other hosts with such devices, if only the VM's own host was checked."""
        current_host = inventory.host_of(vm)
        if not self._is_dynamic or current_host is None or hosts != (current_host,):
            return ()
        able_hosts = []
        for host in others_with_gpus(vm, inventory, any_device=True):
            goal = dynamic_goal(vm, self.device_type, self.label, self.count, (host,), old)
            if isinstance(goal, Goal):
                able_hosts.append(host)
        return (suggest_move(vm, [host.name for host in able_hosts], current_host),) if able_hosts else ()

    def _refuse_other_devices(self, vm: Vm, goal: Goal, old: tuple[GpuDevice, ...]) -> tuple[Rejection, ...]:
        """Refuse if the VM has GPU devices that the request neither names, nor keeps (--add), nor replaces."""
        if self.replace and not old and not goal.unchanged:
            return (Rejection(vm.name, f"has no {self.replace} to replace", hint=f"it has: {gpu_names(vm)}"),)
        unrequested_devices = () if self.add or _requests_no_gpu(goal) else other_gpus(goal)
        if not unrequested_devices:
            return ()
        names = ", ".join(dict.fromkeys(signature(device) for device in unrequested_devices))
        replaced = option_of(unrequested_devices[0])
        hint = f"use --add to keep it next to the new one, or --replace {replaced} to replace it"
        return (Rejection(vm.name, f"has {names} already", hint=hint),)


def _requests_no_gpu(goal: Goal) -> bool:
    """Return whether only devices other than NVIDIA GPUs are requested: the VM's GPUs then stay."""
    requested_devices = (*goal.add, *(device for device in goal.kept if device.key in goal.requested_keys))
    return bool(requested_devices) and all(map(is_no_gpu, requested_devices))


@dataclass(frozen=True, slots=True)
class ResolvedAttach:
    """A request after its names were resolved: the VM, its future devices, the allowed hosts, and the options."""

    vm: Vm
    goal: Goal
    hosts: tuple[Host, ...]
    numa: NumaPolicy
    pin: PinPolicy
    power: PowerPolicy
    inventory: Inventory
    catalog: Catalog
    keep_free: KeepFree = NOTHING_KEPT

    @property
    def needs(self) -> Wanted:
        demands = demands_of(self.goal.devices, kept_pins(self.vm, self.goal))
        hosts, grouped = tuple(host.ref for host in self.hosts), self.goal.device_group is not None
        return Wanted(self.vm, demands, hosts, self.numa, self.pin, grouped=grouped, keep_free=self.keep_free)


def has_all_devices(request: ResolvedAttach) -> bool:
    """Return whether the VM already has all devices, on an allowed host, and runs or has the settings they need."""
    host = next((host for host in request.hosts if host.ref == request.vm.host), None)
    if host is None or not request.goal.unchanged:
        return False
    if request.numa is NumaPolicy.REQUIRED and not _is_bound(request, host):
        return False
    settings = Fitting(request.vm, request.goal, Placement(host), NumaPolicy.NONE, request.catalog)
    return request.vm.power is PowerState.ON or change_of(settings).empty


def plan_unchanged_vm(request: ResolvedAttach, blockers: tuple[Rejection, ...]) -> Plan:
    """Return the plan for a VM that has its devices: at most a power-on, if the request asks for it."""
    because = (f"{request.vm.name} has {gpu_names(request.vm)} already",)
    if request.power is not PowerPolicy.ON or request.vm.power is PowerState.ON:
        return Plan(because=because)
    if request.vm.power is not PowerState.OFF:
        power = request.vm.power or "in an unreadable power state"
        return Plan(because=(*because, f"it is {power}; gpuops powers on only a VM that is off"))
    placement = place(replace(request.needs, hosts=(request.vm.host or "",)), request.inventory, request.catalog)
    if blockers or not isinstance(placement, Placement):
        return refuse(*blockers, *(() if isinstance(placement, Placement) else placement))
    start = Wave(f"start {request.vm.name}", (PowerOnVm(request.vm.ref, request.vm.host),))
    return Plan((start,), because=because, warnings=placement.doubts, choices=placement.choices)


def plan_attachment(request: ResolvedAttach, blockers: tuple[Rejection, ...]) -> Plan:
    """Return the plan that gives the VM its devices, or all reasons against it together with `blockers`."""
    first_host = next(iter(request.hosts), None)
    # Only hosts on which vSphere HA admission control lets the VM start.
    headroom = Headroom(request.vm, request.inventory)
    ha_refusals = {host.ref: rejection for host in request.hosts if (rejection := headroom.refusal(host)) is not None}
    request = replace(request, hosts=tuple(host for host in request.hosts if host.ref not in ha_refusals))
    placement = place_near(request.needs, request.inventory, request.catalog) if request.hosts else ()
    if not isinstance(placement, Placement):
        rejections, _ = findings(_rule_case(request, first_host))
        ha_reasons = dict.fromkeys(ha_refusals.values())
        reasons = (*blockers, *rejections, *ha_reasons, *placement, *_suggest_other_hosts(request))
        return refuse(*reasons, withheld=_withheld_steps(request, first_host))
    goal = with_backings(request.goal, placement.host)
    rejections, warnings = findings(_rule_case(request, placement.host))
    missing_devices = () if isinstance(goal, Goal) else goal
    if not isinstance(goal, Goal) or blockers or rejections:
        withheld = _withheld_steps(request, placement.host)
        return refuse(*blockers, *rejections, *missing_devices, choices=placement.choices, withheld=withheld)
    return _waves(request, Fitting(request.vm, goal, placement, request.numa, request.catalog), warnings)


def _withheld_steps(request: ResolvedAttach, host: Host | None) -> tuple[Step, ...]:
    """Return the steps that the plan would have on that host if nothing were refused."""
    if host is None:
        return ()
    fitting = Fitting(request.vm, request.goal, Placement(host), NumaPolicy.NONE, request.catalog)
    power = power_moves(request.vm, request.power, host.ref)
    return (*_steps(power.before), *_steps(_move(fitting)), *_steps(_edit(fitting)), *_steps(power.after))


def _steps(waves: tuple[Wave, ...]) -> Iterator[Step]:
    return (step for wave in waves for step in wave.steps)


def _move(fitting: Fitting) -> tuple[Wave, ...]:
    vm, host = fitting.vm, fitting.placement.host
    return (Wave(f"move {vm.name}", (RelocateVm(vm.ref, host.ref),)),) if fitting.moved else ()


def _edit(fitting: Fitting) -> tuple[Wave, ...]:
    vm, change = fitting.vm, change_of(fitting)
    return () if change.empty else (Wave(f"reconfigure {vm.name}", (ReconfigureVm(vm.ref, change),)),)


def _waves(request: ResolvedAttach, fitting: Fitting, warnings: tuple[str, ...]) -> Plan:
    """Return the plan that stops, moves, reconfigures and starts the VM, with all warnings."""
    vm, placement = request.vm, fitting.placement
    power = power_moves(vm, request.power, placement.host.ref)
    move = _move(fitting)
    return Plan(
        waves=(*power.before, *move, *_edit(fitting), *power.after),
        warnings=(
            *warnings,
            *placement.doubts,
            *warnings_of(fitting),
            *remote_memory(request.vm, request.numa, placement, request.inventory),
            *warn_of_remote_memory(request.vm, request.numa, placement, request.inventory),
            *_warn_of_displaced_vms(request, fitting),
            *power.warnings,
        ),
        choices=placement.choices,
        disruptive=bool(power.before or move),
    )


def _rule_case(request: ResolvedAttach, host: Host | None) -> Case:
    return Case(request.vm, request.goal.devices, request.goal.device_group is not None, host, request.catalog)


def _is_bound(request: ResolvedAttach, host: Host) -> bool:
    """Return whether the VM is bound to as few NUMA nodes of the host as hold it, with its pinned vGPUs on them."""
    bound_nodes = (request.vm.extra_config or {}).get(AFFINITY_KEY, "").split(",")
    nodes = [node for node in host.numa_nodes if str(node.id) in bound_nodes]
    needed = nodes_needed(request.vm, () if request.needs.grouped else request.needs.demands, host, request.catalog)
    if len(nodes) != len(bound_nodes) or len(nodes) != needed:
        return False
    vm_share = share_of_vm(request.vm, len(nodes))
    if any(node_shortages(vm_share, node, host, request.inventory) for node in nodes):
        return False
    if not set(pins_of(request.vm)) <= {passthru_number(device.key) for device in request.vm.vgpus}:
        return False  # a pin that binds no vGPU: the one that it was meant for may run on any GPU
    pinned_gpus = [host.gpu(address) for address in pins_of(request.vm).values()]
    return all(gpu is not None and gpu.numa_node in {node.id for node in nodes} for gpu in pinned_gpus)


def _suggest_other_hosts(request: ResolvedAttach) -> Iterator[Rejection]:
    """Yield a rejection that names other hosts that can take the VM, if only its own host was checked."""
    if [host.ref for host in request.hosts] == [request.vm.host]:
        rejection = suggest_other_hosts(request.needs, request.inventory, request.catalog)
        if rejection is not None:
            yield rejection


def _warn_of_displaced_vms(request: ResolvedAttach, fitting: Fitting) -> Iterator[str]:
    """Yield a warning for each VM that would no longer find its GPUs once this VM runs."""
    after = request.inventory.with_vm(replace(request.vm, host=fitting.placement.host.ref))
    vm = project(ReconfigureVm(request.vm.ref, change_of(fitting)), after).vm(request.vm.ref)
    yield from warn_of_displaced(vm, fitting.placement.host, after, request.catalog)
