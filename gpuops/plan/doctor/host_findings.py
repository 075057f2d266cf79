"""Findings of hosts and their GPUs. Each source is that of the rule in the verb that would meet it.

Only a host's own nvidia-smi reports MIG mode, ECC and the health of GPUs: where it was not asked there are no such
findings.

`of_reservations` compares what vCenter 9.0 counts and reserves of vGPU profiles and devices with our own counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import quote
from typing import Final, assert_never

from gpuops.advise.capacity import Slots, total
from gpuops.advise.occupancy import gpu_states
from gpuops.advise.room import Rooms
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, PciAddress, PhysicalGpu
from gpuops.model.devices.gpu_health import RecoveryAction
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.devices.scheduler import Frequency, TimeSlices, VgpuScheduler
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import UNASKED, HostSettings, SmiState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.reservation import DeviceCapacity
from gpuops.plan.capacity.fleet_room import DeviceHolders
from gpuops.plan.core.command_line import command, hosts_called
from gpuops.plan.doctor.finding import Finding, Severity
from gpuops.plan.hosts.scheduler.rmpvmrl import Unread
from gpuops.plan.hosts.scheduler.rules import custody_of
from gpuops.plan.hosts.scheduler.state import HostScheduler, scheduler_of
from gpuops.plan.placement.keep_free import place_name

_BY_HAND: Final = "maintenance mode and a reboot, when its VMs are out of the way"
_ROLLING: Final = "rolling"
_REBOOT: Final = "empty the host (maintenance mode) and reboot it"


def of_host(host: Host, catalog: Catalog, *, by_roles: bool = False) -> Iterator[Finding]:
    """Yield what stands in the way on one host with GPUs.

    `by_roles`: what a login may not read of its settings is a note, for it is compared with the roles that say so.
    """
    if host.connected is not True:
        fix = f"govc host.reconnect {quote(host.name)}, once the host itself is up"
        yield Finding(Severity.ERROR, host.name, "is not connected: nothing on it can be planned", fix)
        return
    if host.in_maintenance:
        yield Finding(
            Severity.NOTE,
            host.name,
            "is in maintenance mode",
            f"govc host.maintenance.exit {quote(host.name)}, when the work is done",
        )
    if host.unreadable:
        paths = ", ".join(host.unreadable)
        yield Finding(
            Severity.WARNING, host.name, f"this login cannot read {paths}", "ask for the read-only role there"
        )
    host_scheduler = scheduler_of(host, catalog)
    yield from _driver(host_scheduler, Severity.NOTE if by_roles else Severity.WARNING)
    for gpu in host.gpus:
        yield from _of_gpu(gpu, host)
    for device in host.others:
        yield from _waiting_for_a_boot(device, host)
    yield from _nothing_offered(host, catalog)
    yield from of_health(host)
    yield from of_modes(host)
    yield from _options(host_scheduler)
    yield from _custody(host)


def _driver(host_scheduler: HostScheduler, unread: Severity) -> Iterator[Finding]:
    name, settings = host_scheduler.host.name, host_scheduler.settings
    serving = [gpu for gpu in host_scheduler.host.gpus if not gpu.passed_through]
    if settings.has_module is False and serving:
        fix = "install NVIDIA's vGPU manager (VIB) on it"
        yield Finding(Severity.ERROR, name, "has GPUs for vGPUs, and no NVIDIA driver", fix)
    elif settings.has_module is not False and host_scheduler.driver is None:
        fix = "log in as somebody with Host.Config.Image, or look with esxcli software vib list"
        yield Finding(unread, name, "its NVIDIA driver's version is not known", fix)
    for reason in settings.unread:
        if reason.startswith(UNASKED):
            fix = f"make nvidia-smi answer: {command('host mig show', host=hosts_called(name), host_shell='ssh')}"
            yield Finding(Severity.WARNING, name, f"its GPUs are not known by {reason}", fix)
        else:
            yield Finding(unread, name, f"its settings cannot all be read: {reason}", "ask for that privilege")


def _waiting_for_a_boot(device: PhysicalGpu | OtherDevice, host: Host) -> Iterator[Finding]:
    """DirectPath I/O that is configured and not in force."""
    state = device.passthrough
    if state is not None and state.reboot_pending:
        will, named = "on" if state.enabled else "off", "gpu" if isinstance(device, PhysicalGpu) else "device"
        options = {named: str(device.address), "host": hosts_called(host.name), "reboot": _ROLLING}
        fix = command(f"host passthrough {will}", **options)
        subject = f"{host.name} {device.address}"
        yield Finding(Severity.WARNING, subject, f"DirectPath I/O is {will} from the next reboot on", fix)


def _of_gpu(gpu: PhysicalGpu, host: Host) -> Iterator[Finding]:
    subject = f"{host.name} {gpu.address}"
    yield from _waiting_for_a_boot(gpu, host)
    if gpu.passed_through:
        return
    configured, used = gpu.configured_graphics_type, gpu.graphics_type
    if used is not None and configured is not None and used is not configured:
        fix = _graphics_fix(host.name, gpu.address, configured)
        yield Finding(Severity.WARNING, subject, f"is {configured} from the next reboot on, {used} until then", fix)
    elif used in (GraphicsType.SHARED, GraphicsType.BASIC):
        fix = command("host mode set", type="sharedDirect", gpu=str(gpu.address), host=hosts_called(host.name))
        yield Finding(Severity.WARNING, subject, f"is {used}: no vGPU starts on it", fix)
    elif used is None:
        yield Finding(
            Severity.WARNING, subject, "what it is used for cannot be read", "gpuops inventory --hosts shows it anew"
        )


def _nothing_offered(host: Host, catalog: Catalog) -> Iterator[Finding]:
    """A GPU for vGPUs of which its host offers no profile: boards with SR-IOV need it in the server's firmware
    (NVIDIA AI Enterprise docs)."""
    if host.profiles is None or not host.readable:
        return
    offered = {offered.name for offered in host.profiles}
    for gpu in host.gpus:
        board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
        if board is None or board.esxi_prefix is None or gpu.graphics_type is not GraphicsType.SHARED_DIRECT:
            continue
        if not gpu.passed_through and not any(name.startswith(board.esxi_prefix) for name in offered):
            cause = "its driver is too old for it, or SR-IOV is off in the BIOS" if board.sriov else "its driver?"
            fix = "BIOS: SR-IOV and memory-mapped I/O above 4 GB on" if board.sriov else "look at the host's driver"
            reason = f"the host offers no vGPU profile of {board.name}: {cause}"
            yield Finding(Severity.WARNING, f"{host.name} {gpu.address}", reason, fix)


def _options(host_scheduler: HostScheduler) -> Iterator[Finding]:
    """Yield module options that wait for a reboot, or that cannot be read."""
    if host_scheduler.settings.reboot_pending:
        fix = _module_options_fix(host_scheduler)
        yield Finding(
            Severity.WARNING, host_scheduler.host.name, "other module options are in force after its reboot", fix
        )
    for gpu_scheduler in host_scheduler.gpus:
        if isinstance(gpu_scheduler.configured, Unread):
            fix = "gpuops host scheduler set writes it anew"
            yield Finding(
                Severity.WARNING,
                f"{host_scheduler.host.name} {gpu_scheduler.gpu.address}",
                f"its scheduler: {gpu_scheduler.configured}",
                fix,
            )


def _custody(host: Host) -> Iterator[Finding]:
    """Yield a note for each host profile or cluster configuration that may undo `host scheduler set`."""
    custody = custody_of(host)
    for name in custody.profiles or ():
        reason = f"host profile {name} is attached to it, and may set the options of module nvidia back"
        yield Finding(Severity.NOTE, host.name, reason, "change the profile with the scheduler")
    if custody.configured:
        reason = "its cluster keeps its configuration, and may set the options of module nvidia back"
        yield Finding(Severity.NOTE, host.name, reason, "change the cluster's configuration with the scheduler")
    if custody.profiles is None or custody.configured is None:
        reason = "whether a host profile or its cluster's configuration sets it back cannot be read"
        yield Finding(Severity.NOTE, host.name, reason, "look in the vSphere Client: Policies and Profiles")


def of_health(host: Host) -> Iterator[Finding]:
    """Yield what a host's nvidia-smi reports about the health of its GPUs."""
    states = (host.settings or HostSettings()).mig
    if states is None:
        states = tuple(SmiState(gpu.address, None, None, health=gpu.health) for gpu in host.gpus if gpu.health)
    for state in states:
        for severity, problem, fix in _problems(state):
            yield Finding(severity, f"{host.name} {state.address}", problem, fix)


def _problems(state: SmiState) -> Iterator[tuple[Severity, str, str]]:
    health, address = state.health, state.address
    look = f"nvidia-smi -q -i {address} on the host"
    if health.is_lost:
        yield Severity.ERROR, "is lost: it has fallen off the bus, and takes no vGPU", _REBOOT
    elif health.vgpu_obstacle:
        action = health.recovery_action
        suffix = f" (recovery action: {action})" if action not in (None, RecoveryAction.NONE) else ""
        yield Severity.ERROR, f"requires reset, and takes no vGPU until then{suffix}", _REBOOT
    elif health.recovery_action not in (None, RecoveryAction.NONE):
        yield Severity.WARNING, f"the driver asks for a recovery action: {health.recovery_action}", look
    if health.error:
        yield Severity.WARNING, f"nvidia-smi reports for it: {health.error.lower()}", f"{look}; if it stays, {_REBOOT}"
    elif state.unread and not health.problems:
        yield Severity.WARNING, f"its MIG mode cannot be read ({state.unread})", look
    if health.has_corrupt_inforom:
        fix = "ask the server's vendor about the board; the GPU works on, and what nvidia-smi reports is complete"
        yield Severity.WARNING, "its infoROM is corrupted", fix
    if health.is_row_remap_pending:
        reason = "a memory row is remapped at its next reset (row remap pending); it works on until then"
        yield Severity.WARNING, reason, f"before a VM is moved to it: {_REBOOT}"


def of_modes(host: Host) -> Iterator[Finding]:
    """Modes that wait for a reset of the GPU or for a reboot."""
    for state in (host.settings or HostSettings()).mig or ():
        subject = f"{host.name} {state.address}"
        for setting, now, then in (("MIG mode", state.current, state.pending), ("ECC", state.ecc, state.ecc_pending)):
            if now is not None and then is not None and now is not then:
                fix = _mig_fix(host.name, state.address, on=then) if setting == "MIG mode" else _BY_HAND
                will = "on" if then else "off"
                yield Finding(Severity.WARNING, subject, f"{setting} is {will} from the next reset or reboot on", fix)


def unlike_ecc(cluster: str, hosts: Sequence[Host]) -> Iterator[Finding]:
    """A VM with a vGPU moves only between GPUs of one model and the same ECC state (NVIDIA AI Enterprise docs)."""
    hosts_by_model: defaultdict[str, dict[bool, set[str]]] = defaultdict(lambda: defaultdict(set))
    for host in hosts:
        for state in (host.settings or HostSettings()).mig or ():
            gpu = host.gpu(state.address)
            if gpu is not None and state.ecc is not None:
                hosts_by_model[gpu.name][state.ecc].add(host.name)
    for model, by_state in sorted(hosts_by_model.items()):
        if len(by_state) > 1:
            fewer = min(by_state.items(), key=lambda state_and_hosts: (len(state_and_hosts[1]), state_and_hosts[0]))
            word = "on" if fewer[0] else "off"
            reason = f"ECC of {model} is {word} on {', '.join(sorted(fewer[1]))} alone: no vGPU moves between them"
            yield Finding(Severity.WARNING, cluster, reason, "set it alike: nvidia-smi -e on the hosts, and a reboot")


def _graphics_fix(host: str, gpu: PciAddress, configured: GraphicsType) -> str:
    """Return the command for a graphics type that waits; a type that no command sets needs a manual reboot."""
    if configured not in (GraphicsType.SHARED, GraphicsType.SHARED_DIRECT):
        return _BY_HAND
    return command("host mode set", type=str(configured), gpu=str(gpu), host=hosts_called(host), reboot=_ROLLING)


def _mig_fix(host: str, gpu: PciAddress, *, on: bool) -> str:
    """Return the command for a MIG mode that waits."""
    verb = f"host mig {'on' if on else 'off'}"
    return command(verb, gpu=str(gpu), host=hosts_called(host), host_shell="ssh", reboot=_ROLLING)


def _module_options_fix(host_scheduler: HostScheduler) -> str:
    """For module options that wait: the command that sets the policy of one GPU as it is, which changes nothing but
    reboots the host."""
    for gpu_scheduler in host_scheduler.gpus:
        scheduler = gpu_scheduler.configured
        if gpu_scheduler.note is None and isinstance(scheduler, VgpuScheduler) and scheduler.weighted:
            gpu, host = str(gpu_scheduler.gpu.address), hosts_called(host_scheduler.host.name)
            return command("host scheduler set", **_scheduler_options(scheduler), gpu=gpu, host=host, reboot=_ROLLING)
    return _BY_HAND


def _scheduler_options(scheduler: VgpuScheduler) -> dict[str, str]:
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


def of_reservations(hosts: Sequence[Host], inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    """Yield what is not told of the clusters of these hosts, and where vCenter's count is another one than ours.

    Compared is what the GPUs have room for, as vCenter does (vSphere API 9.0, DirectPathProfileManagerCapacityInfo):
    cores and memory of hosts are no part of it.
    """
    if inventory.reservations is None:
        return
    empty = _without_vms(inventory)
    for place in dict.fromkeys(host.cluster or host.ref for host in hosts if host.gpus):
        members = [host for host in inventory.hosts.values() if (host.cluster or host.ref) == place]
        name = place_name(members[0], inventory)
        for unknown in inventory.reservations.unknown:
            if unknown.place in (place, ""):
                message = (
                    f"what is reserved of {unknown.profile or 'DirectPath profiles'} is not known: {unknown.reason}"
                )
                fix = "see to it that this login may read the DirectPath profiles: gpuops help place"
                yield Finding(Severity.WARNING, name, message, fix)
        for capacity in inventory.reservations.in_place(place):
            now, most = (_count_slots(capacity.profile, members, snapshot, catalog) for snapshot in (inventory, empty))
            if not (_is_within(capacity.remaining, now) and _is_within(capacity.maximum, most)):
                reason = (
                    f"{capacity.profile}: vCenter counts {capacity.remaining} more of {capacity.maximum}, "
                    f"gpuops {_range(now)} of {_range(most)}"
                )
                fix = "plans go by the smaller count; look for GPUs in another mode, or held by what vCenter hides"
                yield Finding(Severity.WARNING, name, reason, fix)
        for of_devices in inventory.reservations.devices_in(place):
            room = total([_devices(of_devices, host, inventory) for host in members if _is_usable(host)])
            if not _is_within(of_devices.remaining, room):
                reason = f"{of_devices.name}: vCenter counts {of_devices.remaining} more, gpuops {_range(room)}"
                fix = "plans go by what vCenter counts; look for devices that it does not give, or that are held"
                yield Finding(Severity.WARNING, name, reason, fix)


def _is_usable(host: Host) -> bool:
    return bool(host.connected) and not host.in_maintenance


def _devices(capacity: DeviceCapacity, host: Host, inventory: Inventory) -> Slots:
    holding = DeviceHolders(host, inventory)
    rooms = [room for device in host.devices if capacity.is_of(device) and (room := holding.room(device)) is not None]
    return total(rooms)


def _without_vms(inventory: Inventory) -> Inventory:
    hosts = (replace(host, gpus=tuple(replace(gpu, vms=()) for gpu in host.gpus)) for host in inventory.hosts.values())
    return replace(inventory, vms={}, hosts={host.ref: host for host in hosts})


def _count_slots(profile: str, members: Sequence[Host], inventory: Inventory, catalog: Catalog) -> Slots:
    """Return the room of the GPUs of these hosts, as far as they can be used."""
    rooms, usable = Rooms(catalog), [host for host in members if _is_usable(host)]
    states = (state for host in usable for state in gpu_states(inventory.hosts[host.ref], inventory, catalog))
    rooms_by_gpu = [rooms.on(state, (profile,)) for state in states]
    return total([slots[profile] for slots in rooms_by_gpu if profile in slots])


def _is_within(count: int, slots: Slots) -> bool:
    return slots.at_least <= count and (slots.at_most is None or count <= slots.at_most)


def _range(slots: Slots) -> str:
    if slots.exact:
        return str(slots.at_least)
    return f"{slots.at_least} to {'?' if slots.at_most is None else slots.at_most}"
