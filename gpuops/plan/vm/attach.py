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
from gpuops.plan.core.plan import Plan, Rejection, Wave, refuse
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, RelocateVm, Step
from gpuops.plan.core.versions import unsupported_option
from gpuops.plan.devices.goal import (
    Answer,
    Goal,
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
    able_elsewhere,
    able_instead,
    hosts_for,
    move_blockers,
    others_with_gpus,
    power_blockers,
    power_moves,
    state_blockers,
    unread,
)


@dataclass(frozen=True, slots=True)
class Attach:
    """The devices that a VM gets. Exactly one of `profile`, `device`, dynamic (`dynamic`, `label`, `device_type`) and
    `device_group` names the devices; the other fields limit what gpuops may do for them."""

    run_kind: ClassVar[str] = "attach"

    vm: VmName
    profile: Annotated[str | None, Option("vGPU profile: a100-3-20c.", "NAME", Names.PROFILES)] = None
    count: Annotated[int | None, Option("How many in all (not: how many more); default one.", "N")] = None
    """None = one, or as many as it has and as it replaces."""
    device: Annotated[
        tuple[str, ...],
        Option(
            "A whole GPU or other device, DirectPath I/O: 0000:3b:00.0. May be repeated.", "PCI-ADDRESS", Names.DEVICES
        ),
    ] = ()
    dynamic: Annotated[bool, Option("Any whole GPU or other device of a kind, Dynamic DirectPath I/O.")] = False
    label: Annotated[str | None, Option("Hardware label the dynamic one must carry.", "LABEL", Names.LABELS)] = None
    device_type: Annotated[
        tuple[str, ...], Option("Kind of the dynamic one: 10de:20f1. May be repeated.", "VENDOR:DEVICE")
    ] = ()
    device_group: Annotated[str | None, Option("Vendor device group: Nvidia:2@grid_a100d-80c%NVLink.", "NAME")] = None
    replace: Annotated[str | None, Option("The profile, PCI address or `dynamic` that gives way.", "OLD")] = None
    add: Annotated[bool, Option("Other GPU devices of the VM stay beside the new ones.")] = False
    move: Annotated[MoveMode | None, Option("cold: the VM may be moved, switched off, to a host that has the GPU.")] = (
        None
    )
    pin: Annotated[PinPolicy, Option("auto: bind a vGPU to one GPU where --numa required depends on it.")] = (
        PinPolicy.AUTO
    )
    numa: Annotated[NumaPolicy, Option("How much CPU, memory and GPU must share a NUMA node.")] = NumaPolicy.PREFERRED
    power: Annotated[PowerPolicy, Option(POWER_HELP)] = PowerPolicy.REFUSE
    host: Annotated[str | None, Option("The host it is to be on.", "HOST", Names.HOSTS)] = None
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
            return refuse(*blockers, *(out for host in hosts[:1] if (out := unreachable(host)) is not None))
        old = devices_named(self.replace, vm) if self.replace else ()
        goal = self._goal(vm, old, hosts, inventory, catalog)
        if not isinstance(goal, Goal):
            other_hosts = self._place_on_other_hosts(vm, old, hosts, inventory)
            return refuse(*blockers, *power_blockers(vm, self.power), *goal, *other_hosts)
        keep = KeepFree(profiles_to_keep(self.keep_free, inventory, catalog), claims=True)
        ask = ResolvedAttach(vm, goal, hosts, self.numa, self.pin, self.power, inventory, catalog, keep)
        undecided = self._other_devices(vm, goal, old)
        device_rejections = (*undecided, *broken_groups(vm, goal))
        if not device_rejections and is_there(ask):
            return left_as_it_is(ask, blockers)
        if undecided:  # plan only the requested devices, so that every reason holds whether or not the others stay
            ask = replace(ask, goal=only_requested(goal))
        return planned(ask, (*blockers, *power_blockers(vm, self.power), *device_rejections))

    def _check(self) -> None:
        kinds = [self.profile is not None, bool(self.device), self._is_dynamic, self.device_group is not None]
        if sum(kinds) != 1:
            raise UsageError(
                "attach needs exactly one of --profile, --device, --dynamic and --device-group",
                hint="attach different devices one after another, with --add",
            )
        if self.count is not None and (self.device or self.device_group):
            raise UsageError("--count does not go with --device or --device-group", hint="leave --count out")
        if self.count is not None and self.count < 1:
            raise UsageError(f"--count {self.count} is too small", hint="give a number of vGPUs or devices, 1 or more")

    @property
    def _is_dynamic(self) -> bool:
        return self.dynamic or self.label is not None or bool(self.device_type)

    def _goal(
        self, vm: Vm, old: tuple[GpuDevice, ...], hosts: tuple[Host, ...], inventory: Inventory, catalog: Catalog
    ) -> Answer:
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
            unread_hosts = unread(vm, hosts, inventory)
            if not unread_hosts:
                raise
            return unread_hosts
        return vgpus(vm, profile, self.count, [device for device in old if signature(device) != f"vgpu {profile}"])

    def _place_on_other_hosts(
        self, vm: Vm, old: tuple[GpuDevice, ...], hosts: tuple[Host, ...], inventory: Inventory
    ) -> tuple[Rejection, ...]:
        """Return a rejection that names other hosts with such devices, if only the VM's own host was checked."""
        current_host = inventory.host_of(vm)
        if not self._is_dynamic or current_host is None or hosts != (current_host,):
            return ()
        ask = (vm, self.device_type, self.label, self.count)
        other_hosts = others_with_gpus(vm, inventory, any_device=True)
        able_hosts = [host for host in other_hosts if isinstance(dynamic_goal(*ask, (host,), old), Goal)]
        return (able_instead(vm, [host.name for host in able_hosts], current_host),) if able_hosts else ()

    def _other_devices(self, vm: Vm, goal: Goal, old: tuple[GpuDevice, ...]) -> tuple[Rejection, ...]:
        """Refuse if the VM has GPU devices that the request neither names, nor keeps (--add), nor replaces."""
        if self.replace and not old and not goal.unchanged:
            return (Rejection(vm.name, f"has no {self.replace} to replace", hint=f"it has: {gpu_names(vm)}"),)
        unrequested_devices = () if self.add or _beside_gpus(goal) else other_gpus(goal)
        if not unrequested_devices:
            return ()
        names = ", ".join(dict.fromkeys(signature(device) for device in unrequested_devices))
        replaced = option_of(unrequested_devices[0])
        hint = f"use --add to keep it next to the new one, or --replace {replaced} to replace it"
        return (Rejection(vm.name, f"has {names} already", hint=hint),)


def _beside_gpus(goal: Goal) -> bool:
    """Whether only devices other than NVIDIA GPUs are requested: they leave the VM's GPUs as they are."""
    requested_devices = (*goal.add, *(device for device in goal.kept if device.key in goal.asked))
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


def is_there(ask: ResolvedAttach) -> bool:
    """Whether the VM already has all devices, on an allowed host, and runs or has the settings they need."""
    host = next((host for host in ask.hosts if host.ref == ask.vm.host), None)
    if host is None or not ask.goal.unchanged:
        return False
    if ask.numa is NumaPolicy.REQUIRED and not _is_bound(ask, host):
        return False
    settings = Fitting(ask.vm, ask.goal, Placement(host), NumaPolicy.NONE, ask.catalog)
    return ask.vm.power is PowerState.ON or change_of(settings).empty


def left_as_it_is(ask: ResolvedAttach, blockers: tuple[Rejection, ...]) -> Plan:
    """Return the plan for a VM that has its devices: at most a power-on, if the request asks for it."""
    because = (f"{ask.vm.name} has {gpu_names(ask.vm)} already",)
    if ask.power is not PowerPolicy.ON or ask.vm.power is PowerState.ON:
        return Plan(because=because)
    if ask.vm.power is not PowerState.OFF:
        return Plan(because=(*because, f"it is {ask.vm.power or 'in an unreadable power state'}, and left so"))
    placement = place(replace(ask.needs, hosts=(ask.vm.host or "",)), ask.inventory, ask.catalog)
    if blockers or not isinstance(placement, Placement):
        return refuse(*blockers, *(() if isinstance(placement, Placement) else placement))
    start = Wave(f"start {ask.vm.name}", (PowerOnVm(ask.vm.ref, ask.vm.host),))
    return Plan((start,), because=because, warnings=placement.doubts, choices=placement.choices)


def planned(ask: ResolvedAttach, blockers: tuple[Rejection, ...]) -> Plan:
    """Return the plan that gives the VM its devices, or all reasons against it together with `blockers`."""
    first_host = next(iter(ask.hosts), None)
    # Only hosts on which vSphere HA admission control lets the VM start.
    headroom = Headroom(ask.vm, ask.inventory)
    refused = {host.ref: rejection for host in ask.hosts if (rejection := headroom.refusal(host)) is not None}
    ask = replace(ask, hosts=tuple(host for host in ask.hosts if host.ref not in refused))
    placement = place_near(ask.needs, ask.inventory, ask.catalog) if ask.hosts else ()
    if not isinstance(placement, Placement):
        against, _ = findings(_case(ask, first_host))
        reasons = (*blockers, *against, *dict.fromkeys(refused.values()), *placement, *_elsewhere(ask))
        return refuse(*reasons, withheld=_withheld_steps(ask, first_host))
    goal = with_backings(ask.goal, placement.host)
    against, warnings = findings(_case(ask, placement.host))
    missing = () if isinstance(goal, Goal) else goal
    if not isinstance(goal, Goal) or blockers or against:
        withheld = _withheld_steps(ask, placement.host)
        return refuse(*blockers, *against, *missing, choices=placement.choices, withheld=withheld)
    return _waves(ask, Fitting(ask.vm, goal, placement, ask.numa, ask.catalog), warnings)


def _withheld_steps(ask: ResolvedAttach, host: Host | None) -> tuple[Step, ...]:
    """Return the steps that the plan would have on that host if nothing were refused."""
    if host is None:
        return ()
    fitting = Fitting(ask.vm, ask.goal, Placement(host), NumaPolicy.NONE, ask.catalog)
    power = power_moves(ask.vm, ask.power, host.ref)
    return (*_steps(power.before), *_steps(_move(fitting)), *_steps(_edit(fitting)), *_steps(power.after))


def _steps(waves: tuple[Wave, ...]) -> Iterator[Step]:
    return (step for wave in waves for step in wave.steps)


def _move(fitting: Fitting) -> tuple[Wave, ...]:
    vm, host = fitting.vm, fitting.placement.host
    return (Wave(f"move {vm.name}", (RelocateVm(vm.ref, host.ref),)),) if fitting.moved else ()


def _edit(fitting: Fitting) -> tuple[Wave, ...]:
    vm, change = fitting.vm, change_of(fitting)
    return () if change.empty else (Wave(f"reconfigure {vm.name}", (ReconfigureVm(vm.ref, change),)),)


def _waves(ask: ResolvedAttach, fitting: Fitting, warnings: tuple[str, ...]) -> Plan:
    """Return the plan that stops, moves, reconfigures and starts the VM, with all warnings."""
    vm, placement = ask.vm, fitting.placement
    power = power_moves(vm, ask.power, placement.host.ref)
    move = _move(fitting)
    return Plan(
        waves=(*power.before, *move, *_edit(fitting), *power.after),
        warnings=(
            *warnings,
            *placement.doubts,
            *warnings_of(fitting),
            *remote_memory(ask.vm, ask.numa, placement, ask.inventory),
            *warn_of_remote_memory(ask.vm, ask.numa, placement, ask.inventory),
            *_competitors(ask, fitting),
            *power.warnings,
        ),
        choices=placement.choices,
        disruptive=bool(power.before or move),
    )


def _case(ask: ResolvedAttach, host: Host | None) -> Case:
    return Case(ask.vm, ask.goal.devices, ask.goal.device_group is not None, host, ask.catalog)


def _is_bound(ask: ResolvedAttach, host: Host) -> bool:
    """Whether the VM is bound to as few NUMA nodes of the host as hold it, and its pinned vGPUs are on them."""
    bound_nodes = (ask.vm.extra_config or {}).get(AFFINITY_KEY, "").split(",")
    nodes = [node for node in host.numa_nodes if str(node.id) in bound_nodes]
    needed = nodes_needed(ask.vm, () if ask.needs.grouped else ask.needs.demands, host, ask.catalog)
    if len(nodes) != len(bound_nodes) or len(nodes) != needed:
        return False
    part = share_of_vm(ask.vm, len(nodes))
    if any(node_shortages(part, node, host, ask.inventory) for node in nodes):
        return False
    if not set(pins_of(ask.vm)) <= {passthru_number(device.key) for device in ask.vm.vgpus}:
        return False  # a pin that binds no vGPU: the one that it was meant for may run on any GPU
    pinned = [host.gpu(address) for address in pins_of(ask.vm).values()]
    return all(gpu is not None and gpu.numa_node in {node.id for node in nodes} for gpu in pinned)


def _elsewhere(ask: ResolvedAttach) -> Iterator[Rejection]:
    """Yield a rejection that names other hosts that can take the VM, if only its own host was checked."""
    if [host.ref for host in ask.hosts] == [ask.vm.host]:
        rejection = able_elsewhere(ask.needs, ask.inventory, ask.catalog)
        if rejection is not None:
            yield rejection


def _competitors(ask: ResolvedAttach, fitting: Fitting) -> Iterator[str]:
    """Yield a warning for each VM that would no longer find its GPUs once this VM runs."""
    after = ask.inventory.with_vm(replace(ask.vm, host=fitting.placement.host.ref))
    vm = project(ReconfigureVm(ask.vm.ref, change_of(fitting)), after).vm(ask.vm.ref)
    yield from warn_of_displaced(vm, fitting.placement.host, after, ask.catalog)
