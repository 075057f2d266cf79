"""Channels: the counters of a case as shares of the capacity, so that VMs, GPUs and hosts of any size compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import DiagnosisCase

Floats = NDArray[np.float64]

_SAMPLE_MS: Final = 20_000
"""How long a sample of vCenter's counters is."""
_FULL_USE: Final = 10_000.0
"""100 %, in the hundredths of a percent of a counter."""

CHANNELS: Final = {
    "gpu use": "of the GPU by the VM",
    "use beside others": "of the GPU by the VM, where its neighbours leave some",
    "neighbours' use": "of the GPU by the other VMs on it",
    "GPU total": "of the GPU by all",
    "use of its part": "of the GPU by the VM, of one part of as many as fit of its profile",
    "use of an equal part": "of the GPU by the VM, of one part of as many as run on it",
    "frame buffer": "of the frame buffer of its vGPU",
    "GPU memory": "of the memory of the GPU",
    "CPU": "of its vCPUs",
    "CPU to GPU": "the share of its vCPUs to its share of the GPU",
    "ready": "of the time, each vCPU waits for a processor",
    "active": "of its memory is active",
    "consumed": "of its memory is backed by the host's",
    "ballooned": "of its memory is ballooned",
    "swapped": "of its memory is swapped",
    "disk latency": "ms, of its slowest disk, as a logarithm",
    "disk": "kB/s, as a logarithm",
    "latency for its disk use": "how much slower its disk is than its throughput explains",
    "network": "kB/s, as a logarithm",
    "dropped": "packets of a sample, as a logarithm",
    "packets lost": "dropped to what the throughput takes in packets",
    "host CPU": "of the host's processors",
    "host memory": "of the host's memory",
    "temperature": "°C",
    "power": "of its limit",
    "clock": "of the clock it reaches under load",
    "clock under load": "the same, where it is used",
    "slowed by heat": "of the readings",
    "slowed by power": "of the readings",
    "new ECC errors": "since the step before, as a logarithm",
    "link": "of the lanes that it should have",
    "licensed": "1 = it is",
}
"""The meaning of each channel. The order is that of the series in `channels`."""
_STATES: Final = (
    "gpu:smi.gpu.slowedByHeat.latest",
    "gpu:smi.gpu.slowedByPower.latest",
    "gpu:smi.gpu.eccUncorrected.latest",
    "gpu:smi.gpu.pcieWidth.latest",
    "vm:smi.vgpu.licensed.latest",
)
STATES: Final = tuple(CHANNELS)[-len(_STATES) :]
"""The channels that are read from the counters of nvidia-smi in _STATES."""


def channels(case: DiagnosisCase) -> Mapping[str, Floats]:
    """Return the series by the names of CHANNELS, with as many steps as the case has; NaN = missing."""
    facts, steps = case.facts, _steps(case)

    def counter(name: str) -> Floats:
        return case.series.get(name, np.full(steps, np.nan))

    def share(name: str, capacity: float | None) -> Floats:
        """Return the counter as a share of the capacity; NaN if that is unknown."""
        return counter(name) / capacity if capacity else np.full(steps, np.nan)

    kb = 1024  # a MiB, because vCenter's memory counters are in KB
    use = _first_known(
        share("vm:gpu.utilization.average", _FULL_USE), share("vm:smi.vgpu.utilization.latest", _FULL_USE)
    )
    total = _first_known(
        share("gpu:gpu.utilization.average", _FULL_USE), share("gpu:smi.gpu.utilization.latest", _FULL_USE)
    )
    neighbour_use = share("neighbours:gpu.utilization.average", _FULL_USE)
    use, neighbour_use = (
        # a use without a counter is the difference of the other two
        _first_known(use, np.maximum(total - neighbour_use, 0)),
        _first_known(neighbour_use, np.maximum(total - use, 0)),
    )
    cpu = share("vm:cpu.usagemhz.average", _product(facts.vcpus, facts.cpu_mhz))
    latency, disk = np.log1p(counter("vm:disk.maxTotalLatency.latest")), np.log1p(counter("vm:disk.usage.average"))
    net = counter("vm:net.usage.average")
    dropped = counter("vm:net.droppedRx.summation") + np.nan_to_num(counter("vm:net.droppedTx.summation"))
    clock = share("gpu:smi.gpu.clock.latest", facts.clock_mhz)
    series = (  # in the order of CHANNELS
        use,
        use / np.maximum(1 - neighbour_use, 0.02),
        neighbour_use,
        total,
        use * (facts.most_per_gpu or np.nan),
        use * (facts.sharers or np.nan),
        share("vm:gpu.mem.used.average", _product(facts.vgpu_mib, kb)),
        share("gpu:gpu.mem.used.average", _product(facts.gpu_mib, kb)),
        cpu,
        cpu / np.maximum(use, 0.01),
        share("vm:cpu.ready.summation", _product(facts.vcpus, _SAMPLE_MS)),
        share("vm:mem.active.average", _product(facts.memory_mib, kb)),
        share("vm:mem.consumed.average", _product(facts.memory_mib, kb)),
        share("vm:mem.vmmemctl.average", _product(facts.memory_mib, kb)),
        share("vm:mem.swapped.average", _product(facts.memory_mib, kb)),
        latency,
        disk,
        latency - 0.3 * disk,  # the latency that the load of the disk does not explain
        np.log1p(net),
        np.log1p(dropped),
        np.log1p(1000 * dropped / np.maximum(net, 1)),
        share("host:cpu.usagemhz.average", _product(facts.host_cores, facts.cpu_mhz)),
        share("host:mem.consumed.average", _product(facts.host_memory_mib, kb)),
        _first_known(counter("gpu:gpu.temperature.average"), counter("gpu:smi.gpu.temperature.latest")),
        share("gpu:gpu.power.used.latest", facts.power_limit_w),
        clock,
        np.where(total > 0.1, clock, np.nan),  # an idle GPU lowers its clock
        *states(case).values(),
    )
    return dict(zip(CHANNELS, series, strict=True))


def states(case: DiagnosisCase) -> Mapping[str, Floats]:
    """Return only the channels of STATES, which the rules use: the state of GPU and licence by nvidia-smi."""
    unknown = np.full(_steps(case), np.nan)
    heat, power, errors, width, licensed = (case.series.get(name, unknown) for name in _STATES)
    lanes = case.facts.pcie_width
    link = width / lanes if lanes else unknown
    return dict(zip(STATES, (heat, power, np.log1p(_new_errors(errors)), link, licensed), strict=True))


def _steps(case: DiagnosisCase) -> int:
    return max((len(samples) for samples in case.series.values()), default=0)


def _product(count: int | None, unit: int | None) -> float | None:
    return None if count is None or unit is None else float(count * unit)


def _first_known(preferred: Floats, fallback: Floats) -> Floats:
    return np.where(np.isnan(preferred), fallback, preferred)


def _new_errors(counted: Floats) -> Floats:
    """Return what was added since the last known count; a count that starts again, as at a boot, adds nothing."""
    known_steps = np.flatnonzero(~np.isnan(counted))
    added = np.full(len(counted), np.nan)
    if len(known_steps) > 1:
        added[known_steps[1:]] = np.maximum(np.diff(counted[known_steps]), 0)
    return added
