"""Finds the problems of hosts and their GPUs. The sources of the rules are named at the commands that apply them.

Only the host's own nvidia-smi reports MIG mode, ECC and the health of GPUs. Without its answer there are no findings
about them. `reservation_findings` compares vCenter's counts of vGPU profiles and devices (9.0 and later) with ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from shlex import quote
from typing import Final, assert_never

from gpuops.advise.capacity import Slots, total_slots
from gpuops.advise.occupancy import Rooms, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, PhysicalGpu, RecoveryAction
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.devices.scheduler import Frequency, TimeSlices, VgpuScheduler
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import UNASKED, HostSettings, SmiState
from gpuops.model.vcenter.inventory import DeviceCapacity, Inventory
from gpuops.plan.capacity.fleet_room import DeviceHolders
from gpuops.plan.core.command_line import command, hosts_called
from gpuops.plan.hosts.scheduler.module_options import Unread
from gpuops.plan.hosts.scheduler.scheduler_state import HostScheduler, custody_of, scheduler_of
from gpuops.plan.placement.keep_free import place_name


class Severity(StrEnum):
    """Severities, the worst first."""

    ERROR = "error"
    """Something does not work."""
    WARNING = "warning"
    """Something will not work as expected, or may not."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `fix` is a command, or an instruction if no command fixes it."""

    severity: Severity
    subject: str
    reason: str
    fix: str


_REBOOT_YOURSELF: Final = "move or stop its VMs, put it into maintenance mode, and reboot it"
_ROLLING: Final = "rolling"
_REBOOT: Final = "empty the host (maintenance mode) and reboot it"


def findings_on_host(host: Host, catalog: Catalog, *, by_roles: bool = False) -> Iterator[Finding]:
    """Yield the problems of a host with GPUs.

    `by_roles`: the login was compared with a file of roles; settings that it cannot read are then only a note.
    """
    if host.connected is not True:
        fix = f"govc host.reconnect {quote(host.name)}, when the host is up"
        yield Finding(Severity.ERROR, host.name, "is not connected: nothing can be planned on it", fix)
        return
    if host.in_maintenance:
        fix = f"govc host.maintenance.exit {quote(host.name)}, when the work is done"
        yield Finding(Severity.NOTE, host.name, "is in maintenance mode", fix)
    if host.unreadable:
        reason = f"this login cannot read {', '.join(host.unreadable)}"
        yield Finding(Severity.WARNING, host.name, reason, "ask for the read-only role on the host")
    host_scheduler = scheduler_of(host, catalog)
    yield from _driver_findings(host_scheduler, Severity.NOTE if by_roles else Severity.WARNING)
    for gpu in host.gpus:
        yield from _graphics_type_findings(gpu, host)
    for device in host.others:
        yield from _pending_passthrough_findings(device, host)
    yield from _missing_profile_findings(host, catalog)
    yield from health_findings(host)
    yield from pending_mode_findings(host)
    yield from _module_option_findings(host_scheduler)
    yield from _reset_findings(host)


def _driver_findings(host_scheduler: HostScheduler, unread: Severity) -> Iterator[Finding]:
    """Check the host's NVIDIA driver. `unread`: severity of settings that the login cannot read."""
    name, settings = host_scheduler.host.name, host_scheduler.settings
    has_gpu_for_vgpus = any(not gpu.passed_through for gpu in host_scheduler.host.gpus)
    if settings.has_module is False and has_gpu_for_vgpus:
        fix = "install NVIDIA's vGPU manager (VIB) on it"
        yield Finding(Severity.ERROR, name, "has GPUs for vGPUs, but no NVIDIA driver", fix)
    elif settings.has_module is not False and host_scheduler.driver is None:
        fix = "use a login with Host.Config.Image, or run esxcli software vib list on the host"
        yield Finding(unread, name, "the version of its NVIDIA driver is unknown", fix)
    for reason in settings.unread:
        if reason.startswith(UNASKED):
            fix = f"{command('host mig show', host=hosts_called(name), host_shell='ssh')} shows why it does not answer"
            yield Finding(Severity.WARNING, name, f"the state of its GPUs is unknown: {reason}", fix)
        else:
            fix = "gpuops login test shows the privileges that this login lacks"
            yield Finding(unread, name, f"some of its settings cannot be read: {reason}", fix)


def _pending_passthrough_findings(device: PhysicalGpu | OtherDevice, host: Host) -> Iterator[Finding]:
    """Report a switch of DirectPath I/O that waits for a reboot."""
    state = device.passthrough
    if state is not None and state.reboot_pending:
        on_or_off, option = "on" if state.enabled else "off", "gpu" if isinstance(device, PhysicalGpu) else "device"
        options = {option: str(device.address), "host": hosts_called(host.name), "reboot": _ROLLING}
        fix, subject = command(f"host passthrough {on_or_off}", **options), f"{host.name} {device.address}"
        yield Finding(Severity.WARNING, subject, f"DirectPath I/O is {on_or_off} from the next reboot on", fix)


def _graphics_type_findings(gpu: PhysicalGpu, host: Host) -> Iterator[Finding]:
    """Report a graphics type on which no vGPU starts, or that changes at the next reboot."""
    subject = f"{host.name} {gpu.address}"
    yield from _pending_passthrough_findings(gpu, host)
    if gpu.passed_through:
        return
    configured, used = gpu.configured_graphics_type, gpu.graphics_type
    if used is not None and configured is not None and used is not configured:
        options = {"gpu": str(gpu.address), "host": hosts_called(host.name), "reboot": _ROLLING}
        # `host mode set` sets only these two types.
        can_set = configured in (GraphicsType.SHARED, GraphicsType.SHARED_DIRECT)
        fix = command("host mode set", type=str(configured), **options) if can_set else _REBOOT_YOURSELF
        yield Finding(Severity.WARNING, subject, f"is {configured} from the next reboot on, {used} until then", fix)
    elif used in (GraphicsType.SHARED, GraphicsType.BASIC):
        fix = command("host mode set", type="sharedDirect", gpu=str(gpu.address), host=hosts_called(host.name))
        yield Finding(Severity.WARNING, subject, f"is {used}: no vGPU starts on it", fix)
    elif used is None:
        fix = "run gpuops inventory --hosts to read it again"
        yield Finding(Severity.WARNING, subject, "its graphics type cannot be read", fix)


def _missing_profile_findings(host: Host, catalog: Catalog) -> Iterator[Finding]:
    """Report a GPU for vGPUs if the host offers none of its profiles. SR-IOV boards need SR-IOV switched on in the
    server's firmware (NVIDIA AI Enterprise docs)."""
    if host.profiles is None or not host.readable:
        return
    offered = {offered.name for offered in host.profiles}
    for gpu in host.gpus:
        board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
        if board is None or board.esxi_prefix is None or gpu.graphics_type is not GraphicsType.SHARED_DIRECT:
            continue
        if not gpu.passed_through and not any(name.startswith(board.esxi_prefix) for name in offered):
            cause = "its driver is too old, or SR-IOV is off in the BIOS" if board.sriov else "check its driver"
            fix = "update the host's driver"
            if board.sriov:
                fix = "turn on SR-IOV and memory-mapped I/O above 4 GB in the BIOS, or update the host's driver"
            reason = f"the host offers no vGPU profile of {board.name}: {cause}"
            yield Finding(Severity.WARNING, f"{host.name} {gpu.address}", reason, fix)


def _module_option_findings(host_scheduler: HostScheduler) -> Iterator[Finding]:
    """Report options of the nvidia module that wait for a reboot, and schedulers that cannot be decoded."""
    host = host_scheduler.host
    if host_scheduler.settings.reboot_pending:
        reason = "its changed module options take effect only after a reboot"
        yield Finding(Severity.WARNING, host.name, reason, _module_options_fix(host_scheduler))
    for gpu_scheduler in host_scheduler.gpus:
        if isinstance(gpu_scheduler.configured, Unread):
            subject = f"{host.name} {gpu_scheduler.gpu.address}"
            reason = f"its scheduler cannot be decoded: {gpu_scheduler.configured}"
            yield Finding(Severity.WARNING, subject, reason, "set its scheduler again: gpuops host scheduler set")


def _reset_findings(host: Host) -> Iterator[Finding]:
    """Yield a note for each host profile or cluster configuration that may undo `host scheduler set`."""
    custody = custody_of(host)
    for name in custody.profiles or ():
        reason = f"host profile {name} is attached to it and may reset the options of module nvidia"
        yield Finding(Severity.NOTE, host.name, reason, "change the profile whenever you change the scheduler")
    if custody.configured:
        reason = "its cluster manages its configuration and may reset the options of module nvidia"
        fix = "change the cluster's configuration whenever you change the scheduler"
        yield Finding(Severity.NOTE, host.name, reason, fix)
    if custody.profiles is None or custody.configured is None:
        reason = "this login cannot read whether a host profile or its cluster resets the options of module nvidia"
        yield Finding(Severity.NOTE, host.name, reason, "check Policies and Profiles in the vSphere Client")


def health_findings(host: Host) -> Iterator[Finding]:
    """Yield the problems of GPUs that the host's nvidia-smi reports."""
    states = (host.settings or HostSettings()).mig
    if states is None:
        states = tuple(SmiState(gpu.address, None, None, health=gpu.health) for gpu in host.gpus if gpu.health)
    for state in states:
        for severity, problem, fix in _problems(state):
            yield Finding(severity, f"{host.name} {state.address}", problem, fix)


def _problems(state: SmiState) -> Iterator[tuple[Severity, str, str]]:
    """Yield (severity, problem, fix) for one GPU."""
    health, address = state.health, state.address
    look_fix = f"run nvidia-smi -q -i {address} on the host"
    if health.is_lost:
        yield Severity.ERROR, "has fallen off the bus: no vGPU starts on it", _REBOOT
    elif health.vgpu_obstacle:
        action = health.recovery_action
        suffix = f" (recovery action: {action})" if action not in (None, RecoveryAction.NONE) else ""
        yield Severity.ERROR, f"needs a reset: no vGPU starts on it before that{suffix}", _REBOOT
    elif health.recovery_action not in (None, RecoveryAction.NONE):
        yield Severity.WARNING, f"the driver asks for a recovery action: {health.recovery_action}", look_fix
    if health.error:
        yield (
            Severity.WARNING,
            f"nvidia-smi reports for it: {health.error.lower()}",
            f"{look_fix}; if it stays, {_REBOOT}",
        )
    elif state.unread and not health.problems:
        yield Severity.WARNING, f"its MIG mode cannot be read ({state.unread})", look_fix
    if health.has_corrupt_inforom:
        fix = "ask the server's vendor about the board; the GPU works, and nvidia-smi reports all its values"
        yield Severity.WARNING, "its infoROM is corrupted", fix
    if health.is_row_remap_pending:
        reason = "works, but will replace a bad memory row at its next reset (row remap pending)"
        yield Severity.WARNING, reason, f"before you move a VM to it, {_REBOOT}"


def pending_mode_findings(host: Host) -> Iterator[Finding]:
    """Report changes of MIG mode and of ECC that wait for a reset of the GPU or a reboot."""
    for state in (host.settings or HostSettings()).mig or ():
        subject = f"{host.name} {state.address}"
        settings = (("MIG mode", state.current, state.pending), ("ECC", state.ecc, state.ecc_pending))
        for setting, current, pending in settings:
            if current is None or pending is None or current is pending:
                continue
            on_or_off, fix = "on" if pending else "off", _REBOOT_YOURSELF
            if setting == "MIG mode":
                options = {"gpu": str(state.address), "host": hosts_called(host.name)}
                fix = command(f"host mig {on_or_off}", **options, host_shell="ssh", reboot=_ROLLING)
            yield Finding(Severity.WARNING, subject, f"{setting} is {on_or_off} from the next reset or reboot on", fix)


def differing_ecc_findings(cluster: str, hosts: Sequence[Host]) -> Iterator[Finding]:
    """Report GPUs of one model with different ECC states: no VM with a vGPU moves between them (NVIDIA AI Enterprise
    docs)."""
    hosts_by_model: defaultdict[str, dict[bool, set[str]]] = defaultdict(lambda: defaultdict(set))
    for host in hosts:
        for state in (host.settings or HostSettings()).mig or ():
            gpu = host.gpu(state.address)
            if gpu is not None and state.ecc is not None:
                hosts_by_model[gpu.name][state.ecc].add(host.name)
    for model, by_state in sorted(hosts_by_model.items()):
        if len(by_state) > 1:
            # The state with fewer hosts is probably the mistake.
            is_on, names = min(
                by_state.items(), key=lambda state_and_hosts: (len(state_and_hosts[1]), state_and_hosts[0])
            )
            on_or_off = "on" if is_on else "off"
            reason = (
                f"ECC of {model} is {on_or_off} only on {', '.join(sorted(names))}: vGPUs cannot move to other hosts"
            )
            yield Finding(
                Severity.WARNING,
                cluster,
                reason,
                "set the same ECC state on all these hosts (nvidia-smi -e), and reboot them",
            )


def _module_options_fix(host_scheduler: HostScheduler) -> str:
    """Return a command that reboots the host for its module options: it sets a GPU to the scheduler that it has."""
    for gpu_scheduler in host_scheduler.gpus:
        scheduler = gpu_scheduler.configured
        if gpu_scheduler.note is None and isinstance(scheduler, VgpuScheduler) and scheduler.weighted:
            gpu, host = str(gpu_scheduler.gpu.address), hosts_called(host_scheduler.host.name)
            return command("host scheduler set", **_scheduler_options(scheduler), gpu=gpu, host=host, reboot=_ROLLING)
    return _REBOOT_YOURSELF


def _scheduler_options(scheduler: VgpuScheduler) -> dict[str, str]:
    """Return the options of `gpuops host scheduler set` that set this scheduler."""
    options = {"scheduler": str(scheduler.policy)}
    match scheduler.slices:
        case TimeSlices(time_slice_ms=milliseconds):
            options["time_slice"] = "default" if milliseconds is None else f"{milliseconds}ms"
        case Frequency(frequency_hz=hertz, averaging=averaging):
            options |= {"frequency": f"{hertz}Hz"} if hertz is not None else {}
            options |= {"averaging": str(averaging)} if averaging is not None else {}
        case None:
            pass
        case _:
            assert_never(scheduler.slices)
    return options


def reservation_findings(hosts: Sequence[Host], inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    """Report unknown reservations in the clusters of these hosts, and counts of vCenter that differ from ours.

    Only the room on GPUs is compared, not CPU and memory, because vCenter counts it the same way (vSphere API 9.0,
    DirectPathProfileManagerCapacityInfo).
    """
    if inventory.reservations is None:
        return
    empty = _without_vms(inventory)
    for place in dict.fromkeys(host.cluster or host.ref for host in hosts if host.gpus):
        members = [host for host in inventory.hosts.values() if (host.cluster or host.ref) == place]
        name = place_name(members[0], inventory)
        for unknown in inventory.reservations.unknown:
            if unknown.place in (place, ""):
                profile = unknown.profile or "DirectPath profiles"
                reason = f"the reservations of {profile} are unknown: {unknown.reason}"
                fix = "correct that: until then, `rotate night` starts no VM there (gpuops help place)"
                yield Finding(Severity.WARNING, name, reason, fix)
        for capacity in inventory.reservations.in_place(place):
            now = _count_slots(capacity.profile, members, inventory, catalog)
            when_empty = _count_slots(capacity.profile, members, empty, catalog)
            if not (_is_within(capacity.remaining, now) and _is_within(capacity.maximum, when_empty)):
                vcenter_count = f"vCenter reports room for {capacity.remaining} of at most {capacity.maximum}"
                reason = (
                    f"{capacity.profile}: {vcenter_count}, gpuops for {_range(now)} of at most {_range(when_empty)}"
                )
                fix = "gpuops plans with the smaller count; look for GPUs in another mode, or used by hidden VMs"
                yield Finding(Severity.WARNING, name, reason, fix)
        for devices in inventory.reservations.devices_in(place):
            room = total_slots([_device_room(devices, host, inventory) for host in members if _is_usable(host)])
            if not _is_within(devices.remaining, room):
                reason = f"{devices.name}: vCenter reports room for {devices.remaining} more, gpuops for {_range(room)}"
                fix = "gpuops plans with vCenter's count; look for devices that are in use, or not available to VMs"
                yield Finding(Severity.WARNING, name, reason, fix)


def _is_usable(host: Host) -> bool:
    return bool(host.connected) and not host.in_maintenance


def _device_room(capacity: DeviceCapacity, host: Host, inventory: Inventory) -> Slots:
    """Return how many free devices of the host the DirectPath profile allows."""
    holding = DeviceHolders(host, inventory)
    rooms = [room for device in host.devices if capacity.is_of(device) and (room := holding.room(device)) is not None]
    return total_slots(rooms)


def _without_vms(inventory: Inventory) -> Inventory:
    """Return the snapshot as if there were no VMs: its room is the most that the GPUs have."""
    hosts = (replace(host, gpus=tuple(replace(gpu, vms=()) for gpu in host.gpus)) for host in inventory.hosts.values())
    return replace(inventory, vms={}, hosts={host.ref: host for host in hosts})


def _count_slots(profile: str, members: Sequence[Host], inventory: Inventory, catalog: Catalog) -> Slots:
    """Return the free slots of the profile on the usable GPUs of these hosts."""
    rooms, usable = Rooms(catalog), [host for host in members if _is_usable(host)]
    states = (state for host in usable for state in gpu_states(inventory.hosts[host.ref], inventory, catalog))
    rooms_by_gpu = [rooms.on(state, (profile,)) for state in states]
    return total_slots([slots[profile] for slots in rooms_by_gpu if profile in slots])


def _is_within(count: int, slots: Slots) -> bool:
    return slots.at_least <= count and (slots.at_most is None or count <= slots.at_most)


def _range(slots: Slots) -> str:
    if slots.exact:
        return str(slots.at_least)
    return f"{slots.at_least} to {'?' if slots.at_most is None else slots.at_most}"
