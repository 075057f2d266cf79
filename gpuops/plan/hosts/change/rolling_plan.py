"""Plans a rolling change before anything is changed: which hosts are down together, in which order, and where each VM
goes. Its report, and the checks of a host after its reboot: its settings are in force and its driver lists its GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Final, assert_never

from gpuops.errors import UsageError, report_exit_code
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.device_mode import SERVED_AS
from gpuops.model.devices.gpu import GraphicsType, PciAddress, VgpuMode
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.host import Host, has_booted
from gpuops.model.vcenter.host_settings import GraphicsSettings, HostSettings, Rolling
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import Missed
from gpuops.plan.core.command_line import command, hosts_called
from gpuops.plan.core.plan import Outcome, Plan, Verdict
from gpuops.plan.core.privileges import HOT_MOVE, needed_on_host
from gpuops.plan.core.rejection import READ_HOST, READ_VM, RECONNECT, Rejection
from gpuops.plan.core.steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    EnterMaintenance,
    HostStep,
    HostTask,
    LeaveMaintenance,
    ModeChange,
    RebootHost,
)
from gpuops.plan.hosts.change.emptying import Away, Leaving, empty_hosts, names_without_place_on_return, running_vms_on
from gpuops.plan.hosts.host_plan import reports_impact, vms_forbidding_change

MAINTENANCE: Final = "Host.Config.Maintenance"
"""To enter and leave maintenance mode and to reboot (vSphere API reference, HostSystem)."""

NO_REBOOT_PERHAPS: Final = (
    "vCenter reports only when it sets a mode whether that needs a reboot: gpuops empties each host, sets the mode and "
    "reboots the host if needed; without --reboot rolling, it sets the mode at once and empties no host"
)


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """One host of a rolling change: what is set on it, and where its VMs go meanwhile."""

    host: Host
    step: HostStep
    away: tuple[Away, ...]


@dataclass(frozen=True, slots=True)
class Roll:
    """Rounds of hosts that are down together, one round after another; or every reason why not."""

    rounds: tuple[tuple[PlannedHost, ...], ...] = ()
    rejections: tuple[Rejection, ...] = ()
    """Not empty = nothing is done on any host (exit 3)."""
    warnings: tuple[str, ...] = ()
    because: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        return not self.rejections

    @property
    def planned_hosts(self) -> tuple[PlannedHost, ...]:
        return tuple(planned for planned_hosts in self.rounds for planned in planned_hosts)


def plan_roll(plan: Plan[HostStep], rolling: Rolling, inventory: Inventory, catalog: Catalog, now: datetime) -> Roll:
    """Return the rolling change that brings the plan into force. Raises UsageError if the plan needs no reboot."""
    steps = (*plan.steps, *plan.due)
    if plan.feasible and plan.steps and not plan.reboots and not plan.due:
        raise UsageError(
            "no change of this plan waits for a reboot", hint="remove --reboot: the changes take effect at once"
        )
    if plan.feasible and not steps:
        return Roll(because=plan.because)
    rejections = [*plan.rejections, *change_window_refusals(rolling, now)]
    for step in steps or plan.withheld:  # a refused plan has withheld steps instead
        rejections += _host_blockers(inventory.hosts[step.host], inventory)
    if rejections:
        return Roll(rejections=tuple(dict.fromkeys(rejections)))
    rounds, refused = _rounds(fewest_vms_first(steps, inventory), rolling, inventory, catalog)
    if refused:
        return Roll(rejections=refused)
    warnings = list(plan.warnings)
    for planned in chain.from_iterable(rounds):
        names = names_without_place_on_return(planned.host, planned.away, inventory, catalog)
        if names:
            warnings.append(f"{planned.host.name}: {', '.join(names)} may find no GPU when they come back")
    notes = (NO_REBOOT_PERHAPS,) if any(map(reports_impact, steps)) else ()
    return Roll(rounds, (), tuple(warnings), (*plan.because, *notes))


def change_window_refusals(rolling: Rolling, now: datetime) -> Iterator[Rejection]:
    """Yield why no host may be taken out of service now."""
    window = rolling.window
    if window is None or ((night := window.night_at(now)) is not None and night.takes_at(now)):
        return
    night = window.next_night(now)
    opens = "it never opens"
    if night is not None:
        opens = f"it opens at {format_zoned_minute(night.opens.astimezone(window.zone))}"
    hint = "run the command then, for example from cron, or remove --window"
    yield Rejection(f"window {window.name}", f"is closed: {opens}", hint=hint)


def fewest_vms_first(steps: Sequence[HostStep], inventory: Inventory) -> list[HostStep]:
    """Return the steps, the host with the fewest running VMs first: if the change is wrong, it disturbs the fewest."""

    def sort_key(step: HostStep) -> tuple[int, str, str]:
        host = inventory.hosts[step.host]
        return len(running_vms_on(host, inventory)), host.name, host.ref

    return sorted(steps, key=sort_key)


def plan_together(
    steps: Sequence[HostStep], rolling: Rolling, inventory: Inventory, catalog: Catalog
) -> tuple[PlannedHost, ...] | tuple[Rejection, ...]:
    """Return how these hosts are emptied together, or the refusals.

    It is refused for each host that is gone, or for each VM that forbids the change or cannot leave.
    """
    removed = tuple(
        Rejection(
            step.host,
            "is gone from vCenter",
            hint=f"if it never comes back: {command('change abandon', host=step.host)}",
        )
        for step in steps
        if step.host not in inventory.hosts
    )
    if removed:
        return removed
    hosts = [inventory.hosts[step.host] for step in steps]
    forbidden = tuple(rejection for host in hosts for rejection in vms_forbidding_change(host, inventory))
    if forbidden:
        return forbidden
    outcome = empty_hosts(hosts, rolling.vms, inventory, catalog)
    if outcome.rejections:
        return outcome.rejections
    return tuple(PlannedHost(host, step, outcome.away[host.ref]) for host, step in zip(hosts, steps, strict=True))


def privileges_of_hosts(
    planned_hosts: Collection[PlannedHost],
) -> tuple[Mapping[str, frozenset[str]], Mapping[str, frozenset[str]]]:
    """Return the privileges that the login must have, by host (ref) and by VM (ref).

    Source: vSphere API reference, the privileges of the methods.
    """
    hosts = {planned.host.ref: needed_on_host(planned.step) | {MAINTENANCE} for planned in planned_hosts}
    vms = {
        departure.vm.ref: _privileges_to_leave(departure.leaving)
        for planned in planned_hosts
        for departure in planned.away
    }
    return hosts, {ref: privileges for ref, privileges in vms.items() if privileges}


def _privileges_to_leave(leaving: Leaving) -> frozenset[str]:
    match leaving:
        case Leaving.VMOTION:
            return HOT_MOVE
        case Leaving.SHUT_DOWN | Leaving.POWER_OFF:
            return frozenset({"VirtualMachine.Interact.PowerOff", "VirtualMachine.Interact.PowerOn"})
        case Leaving.DRS:
            return frozenset()


def _host_blockers(host: Host, inventory: Inventory) -> Iterator[Rejection]:
    """Yield the reasons against rebooting a host, whatever is set on it."""
    if host.connected is not True:
        yield Rejection(host.name, "is not connected", hint=RECONNECT)
        return
    if host.in_maintenance is not False:
        rule = "whether it is in maintenance mode cannot be read"
        rule = "is in maintenance mode already" if host.in_maintenance else rule
        yield Rejection(host.name, rule, hint="take it out of maintenance mode, or select hosts without it (--host)")
    if host.booted is None:
        rule = "when it last booted cannot be read, so a reboot could not be confirmed"
        yield Rejection(host.name, rule, hint=READ_HOST)
    yield from vms_forbidding_change(host, inventory)
    for vm in inventory.vms_on(host):
        if vm.power is None and not vm.template:
            yield Rejection(host.name, f"whether {vm.name} runs cannot be read", hint=READ_VM)


def _rounds(
    steps: Sequence[HostStep], rolling: Rolling, inventory: Inventory, catalog: Catalog
) -> tuple[tuple[tuple[PlannedHost, ...], ...], tuple[Rejection, ...]]:
    """Return the rounds, each with as many hosts as may be down at once and can be emptied together; and the refusals.

    Every round is planned on the same snapshot, because the VMs of earlier rounds have returned to their hosts by then.
    """
    rounds: list[tuple[PlannedHost, ...]] = []
    refused: list[Rejection] = []
    waiting = list(steps)
    while waiting:
        count, planned = next_round(waiting, rolling, inventory, catalog)
        refused += _refusals(planned)
        rounds.append(tuple(planned_host for planned_host in planned if isinstance(planned_host, PlannedHost)))
        del waiting[:count]
    return tuple(rounds), tuple(dict.fromkeys(refused))


def next_round(
    waiting: Sequence[HostStep], rolling: Rolling, inventory: Inventory, catalog: Catalog
) -> tuple[int, tuple[PlannedHost, ...] | tuple[Rejection, ...]]:
    """Return how many of the next hosts are down together, and what is planned for each of them; if even one host alone
    cannot be emptied, return 1 and the reasons."""
    count = min(rolling.max_hosts, len(waiting))
    planned = plan_together(waiting[:count], rolling, inventory, catalog)
    while _refusals(planned) and count > 1:
        count -= 1
        planned = plan_together(waiting[:count], rolling, inventory, catalog)
    return count, planned


def _refusals(planned: Sequence[PlannedHost | Rejection]) -> tuple[Rejection, ...]:
    return tuple(planned_host for planned_host in planned if isinstance(planned_host, Rejection))


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """The report of one run. `applied` False = dry run."""

    verb: str
    """The command whose change it is: `scheduler set`."""
    rolling: Rolling
    before: Inventory
    plan: Roll
    outcomes: tuple[Outcome[HostStep], ...] = ()
    applied: bool = False
    afterwards: tuple[str, ...] = ()
    """The remaining work for the admin, in order."""
    taking_up: str = ""
    """How the run treats a change that an earlier run did not end: `goes on with` or `gives up`; empty = new change."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Ref -> name of each of its hosts when the change began: one may have been removed from vCenter since."""

    @property
    def deeds(self) -> tuple[object, ...] | None:
        """Return what is done to hosts and VMs, without the facts it was planned on; None = the plan is refused."""
        if not self.plan.feasible:
            return None
        return tuple(
            (planned.step, tuple((vm.vm.ref, vm.leaving, vm.target and vm.target.ref) for vm in planned.away))
            for planned in self.plan.planned_hosts
        )

    @property
    def changed(self) -> bool:
        """Return whether a host was changed (applied), or would be (dry run)."""
        if not self.applied:
            return self.plan.feasible and bool(self.plan.rounds)
        return any(outcome.verdict is Verdict.DONE for outcome in self.outcomes)

    @property
    def begun(self) -> bool:
        """Return whether work on a host has begun: if it failed in the middle, the host may be partly changed."""
        untouched = {Verdict.ALREADY, Verdict.SKIPPED}
        return self.applied and any(outcome.verdict not in untouched for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 done or nothing to do, 3 infeasible, 4 partly done (README, exit codes)."""
        good = {Verdict.DONE, Verdict.ALREADY}
        partly = any(outcome.verdict not in good for outcome in self.outcomes)
        return report_exit_code(refused=not self.plan.feasible, partly=partly)


@dataclass(frozen=True, slots=True)
class PartProgress:
    """One host, or one move, of a change under way."""

    ref: str
    name: str
    state: str
    """`done`, `under way`, `to do` or `given up`."""
    away: tuple[str, ...] = ()
    """Names of its VMs that are not back."""


@dataclass(frozen=True, slots=True)
class ChangeStatus:
    """The change that has not ended; `verb` is empty if every change has."""

    verb: str = ""
    began: datetime | None = None
    holder: str = ""
    """The run that carries it out now; empty = it was cut off, or it stopped."""
    parts: tuple[PartProgress, ...] = ()
    noun: str = "host"
    """What a part is."""
    given_up: tuple[Missed, ...] = ()
    """Hosts and VMs that are not back, and that an admin told gpuops to give up."""


def task_satisfied(step: HostTask, host: Host) -> bool:
    """Return whether the host shows what the step would bring about."""
    match step:
        case EnterMaintenance():
            return host.in_maintenance is True
        case LeaveMaintenance():
            return host.in_maintenance is False
        case RebootHost(booted=before):
            return host.connected is True and has_booted(host.booted, before)
        case _:
            assert_never(step)


def gpus_of_driver(host: Host) -> tuple[PciAddress, ...]:
    """Return the GPUs that the host's driver lists."""
    return tuple(gpu.address for gpu in host.gpus if gpu.graphics_type is not None)


def gpus_listed_after_boot(host: Host) -> tuple[PciAddress, ...]:
    """Return the GPUs that the driver must list again after a reboot: not those that wait for DirectPath I/O."""
    return tuple(address for address in gpus_of_driver(host) if address not in _waiting_for_vms(host))


def _waiting_for_vms(host: Host) -> Collection[PciAddress]:
    """Return the GPUs that are configured to be given to VMs as whole devices."""
    return {gpu.address for gpu in host.gpus if gpu.passthrough is not None and gpu.passthrough.enabled}


def gpus_staying_in_mig_mode(step: HostStep, host: Host) -> tuple[PciAddress, ...]:
    """Return the GPUs in MIG mode that the step, and what else waits for the reboot, leaves in it.

    A boot keeps that mode (assumption: mig-mode-after-boot).
    """
    switched = step.devices if isinstance(step, ConfigureMig) else ()
    states = (host.settings or HostSettings()).mig or ()
    switched_off = {state.address for state in states if state.pending is False}
    changed_addresses = {*switched, *switched_off, *_waiting_for_vms(host), *_given_whole(step)}
    in_mig_mode = (gpu.address for gpu in host.gpus if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE)
    return tuple(address for address in in_mig_mode if address not in changed_addresses)


def _given_whole(step: HostStep) -> Collection[PciAddress]:
    """Return the GPUs that the step makes available to VMs as whole devices."""
    if isinstance(step, ConfigurePassthrough):
        return {change.address for change in step.devices if change.enabled}
    return {change.address for change in step.devices if change.after.whole} if isinstance(step, ConfigureModes) else ()


def lost_mig_modes(gpus: Collection[PciAddress], host: Host) -> str | None:
    """Return which of the GPUs are not in MIG mode any more; None = all are. On some systems a boot ends the mode."""
    modes = {gpu.address: gpu.vgpu_mode for gpu in host.gpus}
    lost = [str(address) for address in gpus if modes.get(address) is not VgpuMode.MULTI_INSTANCE]
    set_command = command("host mig on", host=hosts_called(host.name))
    return f"MIG mode of {', '.join(lost)} did not survive its boot: {set_command}" if lost else None


def unlisted_gpus(step: HostStep, gpus: Collection[PciAddress], host: Host) -> tuple[PciAddress, ...]:
    """Return the GPUs that the driver does not list (yet), except those that the step gives to VMs as whole devices."""
    given_whole = _given_whole(step)
    return tuple(address for address in gpus if address not in gpus_of_driver(host) and address not in given_whole)


def not_in_force(step: HostStep, host: Host) -> str | None:
    """Return a setting of the step that the host does not use yet; None = it uses all of them. A setting that cannot be
    read counts as not used."""
    return next(_settings_not_in_force(step, host), None)


def _settings_not_in_force(step: HostStep, host: Host) -> Iterator[str]:
    """Yield what the step configures and the host does not use yet."""
    settings = host.settings or HostSettings()
    match step:
        case ConfigureModule(after=options):
            if settings.loaded_options is None:
                yield "which options its module nvidia was loaded with cannot be read"
            elif settings.loaded_options != options:
                yield f"its module nvidia was loaded with {settings.loaded_options!r}, not with {options!r}"
        case ConfigureGraphics(after=graphics):
            yield from _types_not_in_force(graphics, host)
        case ConfigurePassthrough(devices=devices):
            active = {state.address: state.active for state in settings.passthrough or ()}
            for change in devices:
                if active.get(change.address) is not change.enabled:
                    yield f"DirectPath I/O of {change.address} is not {'on' if change.enabled else 'off'}"
        case ConfigureModes(devices=changes):
            yield from _modes_not_in_force(changes, settings, host)
        case ConfigureMig(devices=addresses, on=on):
            current = {state.address: state.current for state in settings.mig or ()}
            differing = (address for address in addresses if current.get(address) is not on)
            yield from (f"MIG mode of {address} is not {'on' if on else 'off'}" for address in differing)
        case _:
            assert_never(step)


def _types_not_in_force(graphics: GraphicsSettings, host: Host) -> Iterator[str]:
    """Yield the GPUs whose graphics type is not the configured one."""
    types = {gpu.address: gpu.graphics_type for gpu in host.gpus}
    for device in graphics.devices:
        used_type = types.get(device.address)
        if used_type is None or used_type != GraphicsType(device.graphics_type):
            yield f"GPU {device.address} is {used_type or 'not listed'}, not {device.graphics_type}"


def _modes_not_in_force(changes: Iterable[ModeChange], settings: HostSettings, host: Host) -> Iterator[str]:
    """Yield the modes that are not in force: vCenter reports what is configured of a device, the GPU what is in use."""
    active = {state.address: state.active for state in settings.passthrough or ()}
    for change in changes:
        gpu = host.gpu(change.address)
        if active.get(change.address) is not change.after.whole:
            yield f"DirectPath I/O of {change.address} is not {'on' if change.after.whole else 'off'}"
        elif (size := SERVED_AS.get(change.after)) is not None:
            served = gpu.vgpu_mode if gpu is not None else None
            if served not in (size, VgpuMode.MULTI_INSTANCE):
                yield f"the vGPU mode of {change.address} is {served or 'unknown'}, not {size}"
