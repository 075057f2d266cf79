"""The values of the performance counters of hosts and VMs: made from what runs, the same in every run.

GPU counters exist for GPUs of the host's graphics stack only: a passthrough GPU has no driver on the host (from
memory). The API reference has no page for the group `gpu`. A host has them for each GPU, and none as a whole; a cluster
has use, memory and temperature of all its GPUs ("GPU use per cluster or host", vSphere 8.0 Monitoring and Performance,
metric groups; that they are means is from memory). A VM has some for time-sliced vGPUs, none for MIG-backed ones.
Percentages are in hundredths. A VM has no sample from before it was powered on, and uses a little less than its state
says in four samples of five; one with a past was used, before the world began, while somebody of its office was there.
VMs use parts of a GPU that add up to what the GPU shows, whose power and temperature follow. A VM that is slowed down
(`VmState.slowed_by`) shows the signs of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from gpuops.sim.state.desktop_people import Office, People, people
from gpuops.sim.state.vm_state import Power, Slowdown

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import ComputeEntity, HostEntity, VmEntity
    from gpuops.sim.state.gpu_admission import RunningVgpu
    from gpuops.sim.state.host_state import HostGpu
    from gpuops.sim.state.vm_state import VmState
    from gpuops.sim.vcenter.perf_counters import Values

SAMPLE_MS: Final = 20_000
IDLE_C: Final = 34
IDLE_W: Final = 30
BUSY_SHARE: Final = 60
"""Percent of its part of the GPU that a vGPU of a busy VM uses."""
AT_WORK_MHZ: Final = 1400
"""CPU that a desktop uses while a user works."""
BUSY_MHZ: Final = 500
"""A VM that uses more CPU than this also uses its vGPU."""
_CLUSTER_COUNTERS: Final = ("gpu.utilization.average", "gpu.mem.usage.average", "gpu.temperature.average")


def measure(entity: Any, moment: datetime) -> Values:
    """The counters of an entity: hosts, VMs that are on, and clusters with GPUs have some."""
    if entity.wsdl_name == "HostSystem":
        return _host(entity, moment)
    if entity.wsdl_name == "VirtualMachine" and entity.state.power is Power.ON:
        return _vm(entity, moment)
    if entity.wsdl_name == "ClusterComputeResource":
        return _cluster(entity, moment)
    return {}


def _vm(vm: VmEntity, moment: datetime) -> Values:
    """Return a VM's counters in the units of the API: percentages in 1/100 %, memory in KiB, times in ms."""
    state = vm.state
    if not _is_measured(vm, moment):
        return {}
    signs = signs_of(state, moment)
    model = vm.host().state.model
    capacity_mhz = state.cpus * model.cpu_mhz
    peak_mhz = _peak_mhz(state, moment)
    used_mhz = peak_mhz * _activity_percent(state.name, moment) // 100 + int(signs.more_cpu * capacity_mhz)
    usage = 10_000 * used_mhz // capacity_mhz
    uptime_s = int((moment - state.boot_time).total_seconds()) if state.boot_time else 0
    memory_kib = state.memory_mib << 10
    network = used_mhz // 20
    return {
        ("cpu.usage.average", ""): usage,
        ("cpu.usagemhz.average", ""): used_mhz,
        ("cpu.idle.summation", ""): state.cpus * SAMPLE_MS * (10_000 - usage) // 10_000,
        ("cpu.ready.summation", ""): int(signs.ready * state.cpus * SAMPLE_MS),
        ("mem.usage.average", ""): 10_000 * state.guest_memory_mib // state.memory_mib,
        ("mem.active.average", ""): (state.guest_memory_mib << 10) + int(signs.more_memory * memory_kib),
        ("mem.consumed.average", ""): (state.reserved_mib or state.guest_memory_mib) << 10,
        ("mem.vmmemctl.average", ""): int(signs.ballooned * memory_kib),
        ("mem.swapped.average", ""): int(signs.swapped * memory_kib),
        ("disk.usage.average", ""): used_mhz // 10,
        ("disk.maxTotalLatency.latest", ""): 1 + used_mhz // 1000 + int(signs.latency_ms),
        ("net.usage.average", ""): network,
        ("net.droppedRx.summation", ""): int(signs.lost_packets * (network + 100) * 17),
        ("net.droppedTx.summation", ""): 0,
        ("sys.uptime.latest", ""): max(0, uptime_s),
        **_vgpus(vm, signs, moment),
    }


def _is_measured(vm: VmEntity, moment: datetime) -> bool:
    """Whether there is a sample of that moment: it is on, its host is connected, and it had been started."""
    state = vm.state
    started = state.boot_time is None or moment > state.boot_time
    return state.power is Power.ON and vm.host().state.connection == "connected" and started


def _peak_mhz(state: VmState, moment: datetime) -> int:
    """Return the CPU in MHz that the guest uses at most at a moment: with a past, less while its user is away."""
    past = state.past
    if past is None or moment >= past.until:
        return state.cpu_usage_mhz
    midnight = datetime.combine(moment.date() - timedelta(days=moment.weekday()), time(), moment.tzinfo)
    people_present = _people(past.office, state.name).present(int((moment - midnight).total_seconds()))
    return AT_WORK_MHZ if people_present else state.cpu_usage_mhz


@lru_cache(maxsize=10_000)
def _people(office: Office, name: str) -> People:
    return people(office, 0, crc32(name.encode()))


def _activity_percent(name: str, moment: datetime) -> int:
    """Return the percentage of its peak that a VM uses at a moment: 100 in each fifth sample, else 85 to 100."""
    seed, sample = crc32(name.encode()), int(moment.timestamp()) * 1000 // SAMPLE_MS
    return 100 if (sample + seed) % 5 == 0 else 100 - (sample * 2_654_435_761 + seed >> 8) % 16


def _vgpus(vm: VmEntity, signs: Signs, moment: datetime) -> dict[tuple[str, str], int]:
    """Return the counters of a VM's time-sliced vGPUs; MIG-backed vGPUs have none (VMware KB 319982)."""
    state = vm.state
    if not state.seats or any(seat.type.instance is not None for seat in state.seats):
        return {}
    is_busy = _peak_mhz(state, moment) > BUSY_MHZ
    host = vm.host()
    uses = [_gpu_use_by_vm(host, pci_id, moment).get(vm.moid, 0.0) for pci_id in {seat.pci_id for seat in state.seats}]
    kib = sum(seat.type.framebuffer_mib << 10 for seat in state.seats)
    used_kib = kib * 3 // 4 if is_busy else kib // 10
    return {
        ("gpu.utilization.average", ""): round(100 * sum(uses) / len(uses)),
        ("gpu.mem.used.average", ""): used_kib if signs.frame_buffer is None else int(signs.frame_buffer * kib),
        ("gpu.encode.utilization.latest", ""): 100 * state.console_connections,
        ("gpu.decode.utilization.latest", ""): 0,
    }


def _gpu_use_by_vm(host: HostEntity, pci_id: str, moment: datetime) -> dict[str, float]:
    """Return each VM's use of a GPU by managed object id, in percent of the GPU; the sum is the GPU's utilization."""
    gpu = next((gpu for gpu in host.state.gpus if gpu.pci_id == pci_id), None)
    uses: dict[str, float] = {}
    uses_under_pressure: dict[str, float] = {}
    for vm in host.running_vms():
        part_mib = sum(seat.type.framebuffer_mib for seat in vm.state.seats if seat.pci_id == pci_id)
        if gpu is None or not part_mib or not _is_measured(vm, moment):
            continue
        part = part_mib / gpu.board.framebuffer_mib
        signs = signs_of(vm.state, moment)
        uses[vm.moid] = BUSY_SHARE * part if _peak_mhz(vm.state, moment) > BUSY_MHZ else 0.0
        if signs.gpu_part is not None:
            uses[vm.moid] = 100 * part * signs.gpu_part
        if signs.neighbour_takes_rest:
            uses_under_pressure[vm.moid] = uses[vm.moid]
    other_vms = sorted(uses.keys() - uses_under_pressure.keys())
    # a VM slowed down by a neighbour: one of the other VMs uses all the rest of the GPU
    if uses_under_pressure and other_vms:
        uses[other_vms[0]] += 100 - sum(uses.values())
    return uses


def _host(host: HostEntity, moment: datetime) -> Values:
    """Return the counters of a host and its GPUs; percentages are in 1/100 %, memory in KiB."""
    if host.state.connection != "connected":
        return {}
    running = [vm.state for vm in host.running_vms()]
    model = host.state.model
    mhz = sum(vm.cpu_usage_mhz for vm in running)
    used_mib = sum(vm.reserved_mib or vm.guest_memory_mib for vm in running)
    values = {
        ("cpu.usage.average", ""): 10_000 * mhz // model.capacity_mhz,
        ("cpu.usagemhz.average", ""): mhz,
        ("mem.usage.average", ""): 10_000 * used_mib // model.memory_mib,
        ("mem.consumed.average", ""): used_mib << 10,
        ("power.power.average", ""): 350 + mhz // 100,
    }
    for number, gpu in enumerate(host.state.gpus):
        if gpu.listed:
            instance = _instance(host, number, gpu.pci_id)
            seats = [seat for seat in host.seats() if seat.pci_id == gpu.pci_id]
            values.update(_gpu(gpu, instance, seats, sum(_gpu_use_by_vm(host, gpu.pci_id, moment).values())))
    return values


def _instance(host: HostEntity, number: int, pci_id: str) -> str:
    """Return the instance of a GPU's counters; dumps of vCenters show two forms apart from the address."""
    if "gpu-counter-instances" not in host.world.deviations:  # assumption: gpu-counter-instances
        return pci_id
    if int(host.number) % 2 == 0:
        return f"gpu-{number}"
    domain, bus, device_function = pci_id.split(":")
    return f"{int(domain, 16):03}:{int(bus, 16):03}:{device_function}"


def _cluster(cluster: ComputeEntity, moment: datetime) -> Values:
    """Return the means over the GPUs of its hosts; nothing for a cluster without any."""
    values_by_counter: dict[str, list[int]] = {name: [] for name in _CLUSTER_COUNTERS}
    for host in cluster.hosts():
        for (name, instance), value in _host(host, moment).items():
            if instance and name in values_by_counter:
                values_by_counter[name].append(value)
    return {(name, ""): sum(values) // len(values) for name, values in values_by_counter.items() if values}


def _gpu(gpu: HostGpu, instance: str, seats: list[RunningVgpu], percent: float) -> dict[tuple[str, str], int]:
    """Return the counters of a GPU used to `percent`; power rises with the use, temperature with the power."""
    total_kib = gpu.board.framebuffer_mib << 10
    used_kib = sum(seat.type.framebuffer_mib << 10 for seat in seats)
    extra_w = round(2 * percent)
    return {
        ("gpu.utilization.average", instance): round(100 * percent),
        ("gpu.mem.used.average", instance): used_kib,
        ("gpu.mem.usage.average", instance): 10_000 * used_kib // total_kib,
        ("gpu.mem.total.latest", instance): total_kib,
        ("gpu.temperature.average", instance): IDLE_C + extra_w // 4,
        ("gpu.power.used.latest", instance): IDLE_W + extra_w,
    }


_STEP_S: Final = 300
_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Signs:
    """The measurable signs of a slowdown. Shares are 0 to 1."""

    ready: float = 0.0
    """The share of time that each of its vCPUs waits for a processor."""
    ballooned: float = 0.0
    swapped: float = 0.0
    latency_ms: float = 0.0
    """Additional latency of its slowest disk."""
    lost_packets: float = 0.0
    """The share of its packets that is dropped."""
    more_cpu: float = 0.0
    """The share of its vCPUs that it uses in addition to its work."""
    more_memory: float = 0.0
    """The share of its memory that is active in addition to its work."""
    frame_buffer: float | None = None
    """The share of its frame buffer that is in use; None = as much as its work needs."""
    gpu_part: float | None = None
    """The share that it uses of its part of the GPU; None = as much as its work needs."""
    neighbour_takes_rest: bool = False
    """Whether another VM on its GPU takes all that is left of it."""


NO_SIGNS: Final = Signs()


def signs_of(state: VmState, moment: datetime) -> Signs:
    """Return the measurable signs of the VM's declared slowdown at a moment; NO_SIGNS if it has none.

    The signs exceed the limits of `gpuops diagnose`, for example CPU ready as in VMware KB 2002181. Slowdowns that only
    nvidia-smi on the host shows (licence, heat, link, ECC errors) have no signs here, and remote memory is a setting
    of the VM.
    """
    if state.slowed_by is None:
        return NO_SIGNS
    variation = 0.7 + 0.6 * _chance(state.name, moment, "how much")
    match state.slowed_by:
        case Slowdown.CPU_READY:
            return Signs(ready=0.2 * variation, gpu_part=0.35 * variation)
        case Slowdown.MEMORY_RECLAIMED:
            share_of_day = (moment.timestamp() % (24 * _HOUR_S)) / (24 * _HOUR_S)
            return Signs(
                ballooned=0.15, swapped=0.05 + 0.2 * share_of_day, latency_ms=25 * variation, gpu_part=0.35 * variation
            )
        case Slowdown.DATASTORE:
            return Signs(latency_ms=110 * variation, gpu_part=0.4 * variation)
        case Slowdown.NETWORK:
            return Signs(lost_packets=0.06 * variation, gpu_part=0.4 * variation)
        case Slowdown.FRAME_BUFFER:
            job_ended = _chance(state.name, moment, "ends") < 0.3
            return Signs(frame_buffer=0.3 if job_ended else 0.98, gpu_part=0.05 if job_ended else 0.5 * variation)
        case Slowdown.NOISY_NEIGHBOUR:
            return Signs(gpu_part=0.9 * variation, neighbour_takes_rest=True)
        case Slowdown.SCHEDULER:
            return Signs(gpu_part=1.0)
        case Slowdown.DRIVER:
            return Signs(frame_buffer=0.003, gpu_part=0.0, more_cpu=0.5 * variation)
        case _:
            return NO_SIGNS


def _chance(name: str, moment: datetime, sign: str) -> float:
    """Return a number from 0 to 1 that stays the same for five minutes and in each run."""
    return crc32(f"{name} {sign} {int(moment.timestamp()) // _STEP_S}".encode()) / 2**32
