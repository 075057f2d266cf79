"""Diagnoses VMs with a vGPU by the store of measurements and one bulk read, or labelled cases in files.

Writes only the diagnoses, their corrections and the model of this machine; changes nothing in vCenter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.advise.gpu_counters import gpus_of_instances
from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.errors import UsageError
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.diagnosis.answer import Diagnosed, DiagnosedVm, JudgedCases, diagnose_cases, scores
from gpuops.extras.diagnosis.case import OF_GPU, OF_HOST, OF_VM, WORDS, CaseFacts, Component, DiagnosisCase
from gpuops.extras.diagnosis.corrections import LocalCorrections
from gpuops.extras.diagnosis.diagnoses import Diagnoses
from gpuops.extras.diagnosis.learning import components_right
from gpuops.extras.observe.blocks import FINE_S
from gpuops.extras.observe.store_reads import MeasurementReads
from gpuops.model.measurements.measurement import GPU_USE, SMI_POWER_LIMIT
from gpuops.model.notice import Notice, NoticeKind
from gpuops.plan.core.rejection import some_names
from gpuops.plan.hosts.scheduler.module_options import Unread
from gpuops.plan.hosts.scheduler.scheduler_state import scheduler_of
from gpuops.report.text import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuops.execute.site.site import NoticeWay
    from gpuops.extras.diagnosis.case import LabelledCase
    from gpuops.extras.diagnosis.learning import TrainingOutcome
    from gpuops.extras.observe.blocks import Values
    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.devices.scheduler import SchedulerPolicy
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm

DEFAULT_PERIOD: Final = timedelta(hours=24)
"""The measurements that a diagnosis uses by default."""
LEAST_STEPS: Final = 6
"""A VM with less than half an hour of history is not judged."""
_SMI: Final = "smi."
_WIDTH: Final = "smi.gpu.pcieWidth.latest"
_CLOCK: Final = "smi.gpu.clock.latest"
_OBSERVE_HINT: Final = "run gpuops observe --once, every 20 minutes from now on (gpuops help observe)"


def read_cases(
    store: tuple[Path, str], inventory: Inventory, catalog: Catalog, vms: Sequence[Vm], since: datetime | None
) -> tuple[dict[str, DiagnosisCase], dict[str, str]]:
    """Return the cases of these VMs by id, and the reason for each VM without a case by its name.

    `since`: the begin of the history; None = `DEFAULT_PERIOD` before now. Raises UsageError if no VM has a history;
    StateDamaged if the store cannot be read.
    """
    begin = inventory.taken_at - DEFAULT_PERIOD if since is None else since
    begin_s = int(begin.timestamp()) // FINE_S * FINE_S
    # up to the end of the step that has begun: -(-a // b) rounds up
    steps = max(0, -(-int(inventory.taken_at.timestamp()) // FINE_S) - begin_s // FINE_S)
    cases: dict[str, DiagnosisCase] = {}
    store_reads = MeasurementReads.open_if_exists(*store, inventory.vcenter)
    if store_reads is not None:
        with store_reads:
            cases = _CaseReader(store_reads, inventory, catalog, begin_s, steps).cases(vms)
    left_out = {vm.name: "0 h of history" for vm in vms if vm.ref not in cases}
    if not cases:
        raise UsageError(
            f"less than half an hour of {some_names(sorted(left_out))} was measured in this period", hint=_OBSERVE_HINT
        )
    return cases, left_out


class _CaseReader:
    """Reads the cases of one span of time from the store."""

    def __init__(
        self, store: MeasurementReads, inventory: Inventory, catalog: Catalog, begin_s: int, steps: int
    ) -> None:
        self._store, self._inventory, self._catalog = store, inventory, catalog
        self._begin_s, self._steps = begin_s, steps

    def cases(self, vms: Sequence[Vm]) -> dict[str, DiagnosisCase]:
        """Return by id the case of each of these VMs that has enough measured steps."""
        hosts = [self._inventory.hosts[ref] for ref in sorted({vm.host for vm in vms if vm.host is not None})]
        neighbour_refs = {tenant.ref for host in hosts for tenant in self._inventory.vms_on(host)}
        of_vm = dict(self._store.arrays(neighbour_refs | {vm.ref for vm in vms}, OF_VM, self._begin_s, self._steps))
        of_host = {host.ref: self._of_host(host) for host in hosts}
        best = self._best_by_model(hosts, of_host)
        case_by_vm = {}
        for vm in vms:
            vm_averages = _averages(of_vm.get(vm.ref, {}))
            if max((int((~np.isnan(averages)).sum()) for averages in vm_averages.values()), default=0) < LEAST_STEPS:
                continue
            case_by_vm[vm.ref] = self._case(vm, vm_averages, of_vm, of_host, best)
        return case_by_vm

    def _case(
        self,
        vm: Vm,
        vm_averages: Mapping[str, NDArray[np.float64]],
        of_vm: Mapping[str, Mapping[str, Values]],
        of_host: Mapping[str, Mapping[str, NDArray[np.float64]]],
        best: Mapping[str, tuple[int | None, int | None]],
    ) -> DiagnosisCase:
        """Return the case of a VM from the series of all VMs and hosts; `best`: link width and clock by GPU model."""
        series = {f"vm:{name}": averages for name, averages in vm_averages.items()}
        host = self._inventory.hosts.get(vm.host or "")
        if host is None:
            return DiagnosisCase(FINE_S, series, _facts(vm, None, None, self._catalog, best, None))
        host_averages = of_host[host.ref]
        series |= {f"host:{name}": host_averages[name] for name in OF_HOST if name in host_averages}
        state = _gpu_of(vm, gpu_states(host, self._inventory, self._catalog))
        limit_w = None
        if state is not None:
            limit_w = _newest(host_averages.get(f"{SMI_POWER_LIMIT}@{state.gpu.address}"))
            of_gpu = {name: host_averages.get(f"{name}@{state.gpu.address}") for name in OF_GPU}
            series |= {f"gpu:{name}": averages for name, averages in of_gpu.items() if averages is not None}
            neighbours = {tenant.vm for tenant in state.tenants} - {vm.ref}
            neighbour_use = [_averages(of_vm.get(ref, {})).get(GPU_USE) for ref in sorted(neighbours)]
            known_use = [averages for averages in neighbour_use if averages is not None]
            if len(known_use) == len(neighbour_use):  # otherwise the sum would be too low
                # without neighbours the zeros are the sum
                series[f"neighbours:{GPU_USE}"] = np.sum([*known_use, np.zeros(self._steps)], axis=0)
        return DiagnosisCase(FINE_S, series, _facts(vm, host, state, self._catalog, best, limit_w))

    def _of_host(self, host: Host) -> dict[str, NDArray[np.float64]]:
        """Return the averages of a host by series; a GPU is named by its address (`counter@0000:3b:00.0`)."""
        begin, until = (
            datetime.fromtimestamp(self._begin_s + step * FINE_S, self._inventory.taken_at.tzinfo)
            for step in (0, self._steps)
        )
        # read first for the names: the store has one series for each GPU, `counter@instance`
        newest = self._store.newest((host.ref,), (*OF_HOST, *OF_GPU, SMI_POWER_LIMIT), begin, until).get(host.ref, {})
        arrays = dict(self._store.arrays((host.ref,), list(newest), self._begin_s, self._steps)).get(host.ref, {})
        # vCenter names GPUs by an instance of its own, which is replaced by the address
        instances = {name.partition("@")[2] for name in newest if "@" in name and not name.startswith(_SMI)}
        addresses = gpus_of_instances(instances, host)
        averages_by_series = {}
        for name, averages in _averages(arrays).items():
            counter, separator, instance = name.partition("@")
            if not separator or name.startswith(_SMI):  # nvidia-smi names GPUs by their address
                averages_by_series[name] = averages
            elif instance in addresses:
                averages_by_series[f"{counter}@{addresses[instance]}"] = averages
        return averages_by_series

    def _best_by_model(
        self, hosts: Collection[Host], of_host: Mapping[str, Mapping[str, NDArray[np.float64]]]
    ) -> dict[str, tuple[int | None, int | None]]:
        """Return the widest link and the highest clock of these hosts, by GPU model."""
        best: dict[str, tuple[int | None, int | None]] = {}
        for host in hosts:
            for gpu in host.gpus:
                width, clock = (_highest(of_host[host.ref].get(f"{name}@{gpu.address}")) for name in (_WIDTH, _CLOCK))
                best_width, best_clock = best.get(gpu.name, (None, None))
                best[gpu.name] = (_larger(best_width, width), _larger(best_clock, clock))
        return best


def _averages(rows_by_series: Mapping[str, Values]) -> dict[str, NDArray[np.float64]]:
    """Return the average of each step, NaN = missing; a series without any average is left out."""
    # the columns of a row: average, highest, fifteenths covered
    pairs: Iterator[tuple[str, NDArray[np.float64]]] = (
        (name, np.where(rows[:, 2] > 0, rows[:, 0].astype(float), np.nan)) for name, rows in rows_by_series.items()
    )
    return {name: averages for name, averages in pairs if not np.isnan(averages).all()}


def _highest(averages: NDArray[np.float64] | None) -> int | None:
    return None if averages is None else int(np.nanmax(averages))


def _newest(averages: NDArray[np.float64] | None) -> int | None:
    return None if averages is None else int(averages[~np.isnan(averages)][-1])


def _larger(first: int | None, second: int | None) -> int | None:
    return max((number for number in (first, second) if number is not None), default=None)


def _gpu_of(vm: Vm, states: Sequence[GpuState]) -> GpuState | None:
    """Return the GPU of the VM's only vGPU; None if it is not certain."""
    if len(vm.vgpus) != 1:
        return None
    matches = [state for state in states if any(tenant.vm == vm.ref and tenant.certain for tenant in state.tenants)]
    return matches[0] if len(matches) == 1 and not matches[0].unclear else None


def _facts(
    vm: Vm,
    host: Host | None,
    state: GpuState | None,
    catalog: Catalog,
    best: Mapping[str, tuple[int | None, int | None]],
    power_limit_w: int | None,
) -> CaseFacts:
    """Return the facts of a VM, its host and its GPU; `best`: the best link width and clock seen, by GPU model."""
    profile = catalog.profile(vm.profiles[0]) if len(vm.vgpus) == 1 else None
    width, clock = best.get(state.gpu.name, (None, None)) if state is not None else (None, None)
    policy, branch = _scheduling(host, state, catalog)
    return CaseFacts(
        vcpus=vm.vcpus,
        memory_mib=vm.memory_mib,
        cpu_mhz=host.cpu_mhz if host is not None else None,
        host_cores=host.cpu_cores if host is not None else None,
        host_memory_mib=host.memory_mib if host is not None else None,
        vgpu_mib=profile.framebuffer_mib if profile is not None else None,
        gpu_mib=state.gpu.memory_mib if state is not None else None,
        most_per_gpu=profile.max_per_gpu if profile is not None else None,
        sharers=len({tenant.vm for tenant in state.tenants}) if state is not None else None,
        scheduler=policy,
        pcie_width=width,
        clock_mhz=clock,
        power_limit_w=power_limit_w,
        remote_memory=_remote(vm, host, state),
        host_driver=branch,
    )


def _scheduling(
    host: Host | None, state: GpuState | None, catalog: Catalog
) -> tuple[SchedulerPolicy | None, int | None]:
    """Return the policy in force on the GPU, and the branch of the vGPU manager; None for each that is not known."""
    if host is None or host.settings is None:
        return None, None
    scheduling = scheduler_of(host, catalog)
    branch = scheduling.branch.number if scheduling.branch is not None else None
    effective_policies = [
        gpu.effective for gpu in scheduling.gpus if state is not None and gpu.gpu.address == state.gpu.address
    ]
    in_force = effective_policies[0] if effective_policies else None
    return (None if in_force is None or isinstance(in_force, Unread) else in_force.policy), branch


def _remote(vm: Vm, host: Host | None, state: GpuState | None) -> float | None:
    """Return the share of the VM's memory on another NUMA node than its GPU; None if it is unknown.

    It is known for a VM that is pinned to a node (numa.nodeAffinity), and for every VM on a host with one node.
    """
    if host is not None and len(host.numa_nodes) == 1:
        return 0.0
    affinity = (vm.extra_config or {}).get("numa.nodeAffinity", "")
    if state is None or state.gpu.numa_node is None or not affinity.strip().isdecimal():
        return None
    return float(int(affinity) != state.gpu.numa_node)


def diagnose(
    inventory: Inventory,
    site: Site,
    *,
    vm: str | None = None,
    host: str | None = None,
    since: datetime | None = None,
) -> Diagnosed:
    """Diagnose the running VMs with a vGPU; `vm`: only VMs of this name or pattern. Changes nothing in vCenter.

    Each answer is stored, so that it can be confirmed or corrected. Reads the settings of the VMs' hosts.
    Raises UsageError for VMs that do not exist or have no history, VmNotFound, HostNotFound, StateDamaged.
    """
    vms = _vms_to_diagnose(inventory, vm, host)
    inventory = site.hosts.with_settings(
        inventory, sorted({machine.host for machine in vms if machine.host is not None})
    )
    cases, left_out = read_cases(site.measurements_store, inventory, catalog_of(inventory), vms, since)
    diagnoses = Diagnoses(site.state_dir)
    model = diagnoses.model()
    with_case = [machine for machine in vms if machine.ref in cases]
    corrections = LocalCorrections.of(diagnoses.settled_diagnoses(inventory.vcenter), inventory.vms)
    by_model = diagnose_cases([cases[machine.ref] for machine in with_case], model)
    diagnosed_vms = []
    for machine, uncorrected in zip(with_case, by_model, strict=True):
        answer = corrections.apply_to(uncorrected, machine)
        case = cases[machine.ref]
        host_of_vm = inventory.hosts.get(machine.host or "")
        steps = max(int((samples == samples).sum()) for samples in case.series.values())  # NaN alone is not itself
        name = diagnoses.note(inventory.vcenter, machine.ref, case, answer.suspects, inventory.taken_at)
        diagnosed_vms.append(
            DiagnosedVm(name, machine.name, host_of_vm.name if host_of_vm else None, steps * case.step_s / 3600, answer)
        )
    return Diagnosed(tuple(diagnosed_vms), left_out, model)


def send_notice_of_diagnosis(notice_way: NoticeWay, diagnosis: Diagnosed, least_probability: float) -> None:
    """Send a notice of components with at least this probability (0 to 1). Errors of sending are not raised."""
    from gpuops.extras.notify.run_watch import RunWatch

    watch = RunWatch(notice_way, "diagnose")
    watch.end(notice_of_diagnosis(diagnosis, watch.run.vcenter, least_probability, notice_way.clock()))


def notice_of_diagnosis(diagnosed: Diagnosed, vcenter: str, least: float, at: datetime) -> Notice | None:
    """Return the notice of components whose probability is at least `least` (0 to 1), or None.

    The same components of the same VMs are reported once a day, however often cron runs.
    """
    suspects = [
        (vm, suspect)
        for vm in diagnosed.vms
        for suspect in vm.diagnosis.suspects
        if suspect.component is not Component.NONE and suspect.probability >= least
    ]
    if not suspects:
        return None
    # identifies the notice: a second one with the same text here is not sent
    about = ("diagnose", f"{at.date()}", *sorted({f"{vm.vm} {suspect.component}" for vm, suspect in suspects}))
    names = tuple(
        f"{vm.vm} ({vm.id}): {suspect.probability:.0%} {WORDS[suspect.component]}" for vm, suspect in suspects
    )
    headline = f"diagnose: {count(len({vm.vm for vm, _ in suspects}), 'VM')} with a component that is probably at fault"
    return Notice(NoticeKind.SLOW, vcenter, about, at, headline, names, f"gpuops diagnose --vcenter {quote(vcenter)}")


def judge_cases(cases: Sequence[LabelledCase], state_dir: Path) -> JudgedCases:
    """Diagnose these cases, and count how many components are right. Reads no vCenter. Raises StateDamaged."""
    model = Diagnoses(state_dir).model()
    unlabelled = [labelled.case for labelled in cases]
    right = components_right(scores(unlabelled, model), [labelled.at_fault for labelled in cases])
    return JudgedCases(tuple(zip(cases, diagnose_cases(unlabelled, model), strict=True)), right, model)


def settle(state_dir: Path, name: str, component: Component | None) -> tuple[Component, ...]:
    """Store the component that a person found; None = they confirm the diagnosis. Raises UsageError, StateDamaged."""
    return Diagnoses(state_dir).settle(name, component)


def train(state_dir: Path) -> TrainingOutcome:
    """Train the next model with made and confirmed cases, and use it unless the current one is better.

    Raises UsageError if the extra is not installed; StateDamaged.
    """
    from importlib.util import find_spec

    from gpuops.distribution import install_extra

    if find_spec("sklearn") is None:
        raise UsageError("training needs scikit-learn, which is not installed", hint=install_extra("diagnose"))
    from gpuops.extras.diagnosis.learning import train

    diagnoses = Diagnoses(state_dir)
    training = train(diagnoses.confirmed_cases(), diagnoses.model())
    if training.replaced:
        diagnoses.set_model(training.model)
    return training


def _vms_to_diagnose(inventory: Inventory, vm: str | None, host: str | None) -> list[Vm]:
    """Return the selected VMs with a vGPU, sorted by name. If `vm` selects them, they may be powered off.

    Raises UsageError if there is none, VmNotFound, HostNotFound.
    """
    if vm is not None and not set("*?[") & set(vm):
        candidates = [inventory.find_vm(vm)]
    else:
        candidates = [machine for machine in inventory.vms.values() if vm is None or fnmatchcase(machine.name, vm)]
    host_ref = inventory.find_host(host).ref if host is not None else None
    vgpu_vms = [
        machine for machine in candidates if machine.vgpus and not machine.template and host_ref in (None, machine.host)
    ]
    if vm is None:
        vgpu_vms = [machine for machine in vgpu_vms if machine.may_run]
    if not vgpu_vms:
        raise UsageError("no VM with a vGPU is selected", hint="gpuops inventory --vms shows VMs and their vGPUs")
    return sorted(vgpu_vms, key=lambda machine: (machine.name, machine.ref))
