"""Rows of `gpuops top` at one moment: hosts, GPUs or VMs, their order, and the rotation or change that runs.

The table in a terminal, the table in a pipe and the JSON document are made of the same rows
(gpuops.extras.web.top_table).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from gpuops.advise.idle import JudgedVm
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.measurements.measurement import CurrentUse, MeasuredUse
from gpuops.model.time_text import format_clock_second
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice, Vm
from gpuops.plan.core.scope import cluster_name
from gpuops.plan.hosts.change.rolling_plan import ChangeStatus
from gpuops.plan.rotation.night_status import RotationStatus
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.report.device_text import describe_device
from gpuops.report.layout import Text
from gpuops.report.monitoring.fleet_view import POWER_WORDS, Fleet, holders, mode, reboot_pending
from gpuops.report.text import count, count_hosts


class TopLevel(StrEnum):
    """What a row shows."""

    HOSTS = "hosts"
    GPUS = "gpus"
    VMS = "vms"


class SortKey(StrEnum):
    """The figure that rows are sorted by: largest first, names from A to Z, unknown figures last."""

    NAME = "name"
    USE = "use"
    MEMORY = "memory"
    VMS = "vms"
    SESSIONS = "sessions"


@dataclass(frozen=True, slots=True)
class TopRow:
    """One host, GPU or VM. None means unknown, or that such rows do not have it."""

    key: str
    """Stays the same for a host, GPU or VM in each reading: `host-12`, `host-12 0000:3b:00.0`, `vm-7`."""
    name: str
    host: str
    """Name of the host, or of the host of a GPU or VM; empty if vCenter does not report the host of a VM."""
    host_ref: str
    detail: str
    """The cluster of a host, the model of a GPU, the GPU devices of a VM."""
    state: str
    """What is unusual, in a few words; for a GPU after its mode, for a VM after its power state."""
    warns: bool
    """Whether the state needs attention."""
    use: MeasuredUse
    refs: tuple[str, ...]
    """Ids of the VMs on its GPUs; for a VM its own."""
    sessions: int | None
    """Console connections to these VMs (VirtualMachine.runtime.numMksConnections)."""
    vms: tuple[str, ...] | None = None
    """Names of the VMs on its GPUs; None if the host does not report them."""
    memory_mib: int | None = None
    """GPU memory of the host, or of the GPU."""
    gpus: int | None = None
    gpus_held: int | None = None
    """How many of a host's GPUs have a VM on them."""
    cpu_mhz: int | None = None
    verdict: str = ""
    """For a desktop of the policy: idle, busy or unknown, with the reason."""


@dataclass(frozen=True)
class Top:
    """One reading of a fleet. Not slotted: rows are made when a level is first shown."""

    fleet: Fleet
    use: CurrentUse
    rotation: RotationStatus
    change: ChangeStatus
    judged: Mapping[str, JudgedVm]
    """Verdicts on the desktops of the given policy, by VM ref."""

    @property
    def inventory(self) -> Inventory:
        return self.fleet.inventory

    def rows(self, level: TopLevel) -> tuple[TopRow, ...]:
        """Return all rows of a level, by the name of the host and then their own."""
        match level:
            case TopLevel.HOSTS:
                return tuple(self._host_row(host) for host in self.fleet.gpu_hosts)
            case TopLevel.GPUS:
                return tuple(self._gpu_row(host, gpu) for host in self.fleet.gpu_hosts for gpu in host.gpus)
            case TopLevel.VMS:
                return tuple(map(self._vm_row, self.fleet.vms))

    def _host_row(self, host: Host) -> TopRow:
        """Return the row of a host; its figures are those of its GPUs together."""
        gpus = [self._gpu_row(host, gpu) for gpu in host.gpus]
        vms = self._vms_by_name(ref for row in gpus for ref in row.refs)
        uses = [row.use for row in gpus]
        states = [
            *(["not connected"] if host.connected is not True else []),
            *(["maintenance"] if host.in_maintenance else []),
            *(["reboot pending"] if any(map(reboot_pending, host.gpus)) else []),
            *dict.fromkeys(f"GPU {problem}" for gpu in host.gpus for problem in _problems(gpu)),
        ]
        return TopRow(
            key=host.ref,
            name=host.name,
            host=host.name,
            host_ref=host.ref,
            detail=cluster_name(host, self.inventory) or "standalone",
            state=", ".join(states),
            warns=bool(states),
            use=MeasuredUse(
                _mean([use.utilization_percent for use in uses]),
                _total([use.memory_used_mib for use in uses]),
                max((use.temperature_c for use in uses if use.temperature_c is not None), default=None),
                _total([use.power_w for use in uses]),
            ),
            memory_mib=_total([gpu.memory_mib for gpu in host.gpus]),
            gpus=len(host.gpus),
            gpus_held=sum(bool(row.vms) for row in gpus),
            vms=None if any(row.vms is None for row in gpus) else tuple(vm.name for vm in vms),
            refs=tuple(vm.ref for vm in vms),
            sessions=_session_count(vms),
        )

    def _gpu_row(self, host: Host, gpu: PhysicalGpu) -> TopRow:
        """Return the row of a GPU, with the VMs that hold it or a part of it."""
        gpu_holders = holders(gpu, host, self.inventory)
        vms = self._vms_by_name(vm.ref for vm in gpu_holders or ())
        warnings = [*(["reboot pending"] if reboot_pending(gpu) else []), *_problems(gpu)]
        return TopRow(
            key=f"{host.ref} {gpu.address}",
            name=str(gpu.address),
            host=host.name,
            host_ref=host.ref,
            detail=gpu.name,
            state=", ".join((mode(gpu), *warnings)),
            warns=bool(warnings),
            use=self.use.gpu(host.ref, gpu.address),
            memory_mib=gpu.memory_mib,
            vms=None if gpu_holders is None else tuple(vm.name for vm in vms),
            refs=tuple(vm.ref for vm in vms),
            sessions=_session_count(vms),
        )

    def _vm_row(self, vm: Vm) -> TopRow:
        """Return the row of a VM; its state has its place in an open night, if there is one."""
        host = self.inventory.host_of(vm)
        whereabouts = self._whereabouts.get(vm.ref)
        judged = self.judged.get(vm.ref)
        power = POWER_WORDS[vm.power]
        return TopRow(
            key=vm.ref,
            name=vm.name,
            host=host.name if host is not None else "",
            host_ref=host.ref if host is not None else "",
            detail=_devices(vm),
            state=f"{power}, night: {whereabouts}" if whereabouts is not None else power,
            warns=whereabouts in (Whereabouts.LOST, Whereabouts.GONE) or vm.question is not None,
            use=self.use.vm(vm.ref),
            refs=(vm.ref,),
            sessions=_session_count((vm,)),
            cpu_mhz=vm.cpu_usage_mhz if vm.power is PowerState.ON else None,
            verdict=f"{judged.verdict.use}: {judged.verdict.reason}" if judged is not None else "",
        )

    def count_taken_vms(self, whereabouts: Whereabouts) -> int:
        """Return how many VMs of open nights are in this state."""
        return sum(rotation_vm.whereabouts is whereabouts for rotation_vm in self.rotation.vms)

    @property
    def lost_vm_count(self) -> int:
        """Return how many VMs of open nights are lost."""
        return self.count_taken_vms(Whereabouts.LOST) + self.count_taken_vms(Whereabouts.GONE)

    @property
    def parts_done(self) -> int:
        """Return how many parts of the open change are done."""
        return sum(part.state == "done" for part in self.change.parts)

    @cached_property
    def _whereabouts(self) -> Mapping[str, Whereabouts]:
        """Return where the VMs of open nights are, by VM ref, without those that are back or were not touched."""
        return {
            rotation_vm.vm.ref: rotation_vm.whereabouts
            for rotation_vm in self.rotation.vms
            if rotation_vm.vm is not None and rotation_vm.whereabouts not in (Whereabouts.BACK, Whereabouts.UNTOUCHED)
        }

    def _vms_by_name(self, refs: Iterable[str]) -> tuple[Vm, ...]:
        """Return these VMs, each once and sorted by name. One that is not in the inventory has its ref as its name."""
        vms = self.inventory.vms
        return tuple(sorted((vms.get(ref) or Vm(ref, ref) for ref in set(refs)), key=lambda vm: (vm.name, vm.ref)))


def filter_and_sort(rows: Iterable[TopRow], sort: SortKey, containing: str = "") -> tuple[TopRow, ...]:
    """Return the rows that contain a text (name, host, detail or state; case does not matter), sorted."""
    text_to_find = containing.casefold()
    matching_rows = [
        row for row in rows if not text_to_find or any(text_to_find in text.casefold() for text in _searched_texts(row))
    ]
    return tuple(sorted(matching_rows, key=lambda row: (*_sort_figure(row, sort), row.host, row.name, row.key)))


def _searched_texts(row: TopRow) -> tuple[str, ...]:
    return (row.name, row.host, row.detail, row.state, row.verdict, *(row.vms or ()))


def _sort_figure(row: TopRow, sort: SortKey) -> tuple[bool, float]:
    """Return a key for `sorted`: rows with larger figures first, those with an unknown figure last."""
    figure: float | None
    match sort:
        case SortKey.NAME:
            figure = 0  # the same for all rows, so that the rest of the sort key, the names, decides
        case SortKey.USE:
            figure = row.use.utilization_percent
        case SortKey.MEMORY:
            figure = row.use.memory_used_mib
        case SortKey.VMS:
            figure = None if row.vms is None else len(row.vms)
        case SortKey.SESSIONS:
            figure = row.sessions
    return figure is None, -(figure or 0)


def heading_lines(top: Top) -> tuple[Text, ...]:
    """Return one line about the fleet, and one for each run or change that is open or was cut off."""
    hosts = top.fleet.gpu_hosts
    gpus = [top.use.gpu(host.ref, gpu.address) for host in hosts for gpu in host.gpus]
    percentages = [use.utilization_percent for use in gpus if use.utilization_percent is not None]
    use_text = (
        f"{sum(percentages) / len(percentages):.0f} % used on average ({count(len(percentages), 'GPU')} measured)"
        if percentages
        else "use not known"
    )
    read_at = f"{format_clock_second(top.inventory.taken_at)} {top.inventory.taken_at.tzname()}"
    subject = f"{count_hosts(len(hosts), len(gpus))}, {use_text}"
    fleet_line = Text(f"vCenter {top.inventory.api_version}: {subject}, read {read_at}", "bold")
    return (fleet_line, *_running_lines(top))


def _running_lines(top: Top) -> list[Text]:
    """Return lines about the night or rotation, its lost VMs, and the change, each with the next command if it is cut
    off."""
    rotation, change, lines = top.rotation, top.change, []
    away_count, changing_count = top.count_taken_vms(Whereabouts.AWAY), top.count_taken_vms(Whereabouts.CHANGING)
    counts = f": {count(away_count, 'VM')} away, {changing_count} changing" if rotation.vms else ""
    if rotation.under_way is not None:
        lines.append(Text(f"{rotation.doing or 'a rotation'} is under way{counts}", "bold cyan"))
    elif rotation.cut_off is not None:
        lines.append(Text(f"{rotation.cut_off} did not end{counts}; next: gpuops rotate resume", "bold red"))
    elif away_count or changing_count:
        lines.append(Text(f"a night is open{counts}", "cyan"))
    if top.lost_vm_count:
        lines.append(Text(f"{count(top.lost_vm_count, 'VM')} of a night lost; next: gpuops rotate status", "bold red"))
    if rotation.journal_lost:
        lines.append(Text(rotation.journal_lost, "bold red"))
    if change.verb:
        doing = f"{change.verb}: {top.parts_done} of {count(len(change.parts), change.noun)} done"
        ended = "" if change.holder else "; no process works on it, next: gpuops change status"
        lines.append(Text(doing + ended, "cyan" if change.holder else "bold yellow"))
    return lines


def _mean(figures: Sequence[float | None]) -> float | None:
    known_figures = [figure for figure in figures if figure is not None]
    return sum(known_figures) / len(known_figures) if known_figures else None


def _total(figures: Sequence[int | None]) -> int | None:
    """Return the sum, or None if a figure is unknown: a partial sum would look like the complete one."""
    return sum(figure for figure in figures if figure is not None) if None not in figures and figures else None


def _session_count(vms: Sequence[Vm]) -> int | None:
    """Return the number of console connections, or None if it is unknown for a VM."""
    return _total([vm.console_connections for vm in vms]) if vms else 0


def _devices(vm: Vm) -> str:
    """Return `2 x nvidia_a40-8q, DirectPath 0000:3b:00.0`."""
    numbers = Counter(
        device.profile if isinstance(device, VgpuDevice) else describe_device(device) for device in vm.devices or ()
    )
    return ", ".join(text if number == 1 else f"{number} x {text}" for text, number in numbers.items())


def _problems(gpu: PhysicalGpu) -> tuple[str, ...]:
    return gpu.health.problems if gpu.health is not None else ()
