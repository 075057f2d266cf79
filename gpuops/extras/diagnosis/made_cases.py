"""Makes labelled cases of a small set-up of four hosts with desktops and ML VMs, each fault at varied strength.

A fault of strength 0 is the smallest that an admin would still call a cause, not the smallest that a test of
significance finds. Half of the cases have no fault but something similar: full GPUs on which no VM waits, hot GPUs that
are not slowed, backups with slow disks, memory that was swapped long ago, old ECC errors, idle links.

The use of a VM follows from its demand: the scheduler divides the GPU, and a VM that waits for one component uses the
others less. Numbers are drawn, not measured; vendor rules are cited where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import FAULTS, CaseFacts, Component, DiagnosisCase, LabelledCase
from gpuops.model.devices.scheduler import SchedulerPolicy

STEP_S: Final = 300
STEPS: Final = 48
"""Four hours of five minutes."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _GpuKind:
    mib: int
    watts: int
    mhz: int
    hot_c: int
    """The temperature from which on it is clocked down."""


@dataclass(frozen=True, slots=True)
class _Hardware:
    cores: int
    mhz: int
    memory_gib: int
    gpu: _GpuKind


_A40: Final = _GpuKind(49_152, 300, 1740, 88)
_A100: Final = _GpuKind(40_960, 250, 1410, 85)
HOSTS: Final = (
    _Hardware(48, 2600, 512, _A40),
    _Hardware(48, 2600, 768, _A40),
    _Hardware(64, 2900, 1024, _A100),
    _Hardware(64, 2900, 1024, _A100),
)


def made_cases(seed: int, each_fault: int) -> Iterator[LabelledCase]:
    """Yield `each_fault` cases of each fault, and as many without a fault as with one; the same for the same seed."""
    components = [fault for fault in FAULTS for _ in range(each_fault)]
    components += [Component.NONE] * len(components)
    for number, component in enumerate(components):
        rng = np.random.default_rng((seed, number))
        yield _MadeCase(rng, component).labelled(f"made-{seed}-{number}")


class _MadeCase:
    """One VM with its fault and the strength of that: 0 = the smallest that counters show, 1 = the worst."""

    def __init__(self, rng: np.random.Generator, fault: Component) -> None:
        """Draw the host, the size of the VM, the VMs that share its GPU, and when the fault begins."""
        self.rng = rng
        self.fault = fault
        self.strength = float(rng.beta(1.0, 1.3))  # weak faults are somewhat more frequent
        self.hardware = HOSTS[rng.integers(len(HOSTS))]
        self.gpu = self.hardware.gpu
        self.vcpus = int(rng.choice((4, 8, 16)))
        self.memory_mib = int(rng.choice((16, 32, 64))) * 1024
        self.slots = int(rng.choice((2, 3, 4, 6, 8)))  # vGPUs of its profile on a GPU
        self.sharers = int(rng.integers(2 if fault is Component.NOISY_NEIGHBOUR else 1, self.slots + 1))
        # the steps with the fault: from the first step on, or from one in the first half
        self.on = np.arange(STEPS) >= int(rng.integers(0, STEPS // 2)) * int(rng.random() < 0.5)
        self.scheduler = self._scheduler()

    def labelled(self, name: str) -> LabelledCase:
        at_fault = frozenset() if self.fault is Component.NONE else frozenset((self.fault,))
        series = self._series()
        return LabelledCase(name, DiagnosisCase(STEP_S, self._with_gaps(series), self._facts()), at_fault)

    # --- what the VM needs ----------------------------------------------------------------------------------------

    def _scheduler(self) -> SchedulerPolicy:
        if self.fault is Component.NOISY_NEIGHBOUR:  # under the other policies neighbours take no time of a VM's share
            return SchedulerPolicy.BEST_EFFORT
        if self.fault is Component.SCHEDULER:
            return SchedulerPolicy(
                self.rng.choice(("equal-share", "fixed-share")) if self.sharers > 1 else "fixed-share"
            )
        if self.rng.random() < 0.7:
            return SchedulerPolicy.BEST_EFFORT
        return SchedulerPolicy(self.rng.choice(("equal-share", "fixed-share")))

    def _share_limit(self) -> float:
        """Return the largest share of the GPU that the scheduler gives (NVIDIA vGPU docs, scheduling policies)."""
        match self.scheduler:
            case SchedulerPolicy.BEST_EFFORT:
                return 1.0
            case SchedulerPolicy.EQUAL_SHARE:
                return 1.0 / self.sharers
            case SchedulerPolicy.FIXED_SHARE:
                return 1.0 / self.slots

    def _demand(self) -> Floats:
        """Return the share of a GPU that the VM would use alone: a desktop, a training or an inference service.

        One in thirty healthy VMs is not used at all.
        """
        kind, level = self.rng.choice(("desktop", "training", "inference")), float(self.rng.uniform(0.1, 1.0))
        steps = np.arange(STEPS)
        if kind == "desktop":
            demand = 0.45 * level * (self.rng.random(STEPS) < 0.6) * self.rng.uniform(0.3, 1.0, STEPS)
        elif kind == "training":
            pauses = self.rng.random(STEPS) < 0.08
            demand = np.where(pauses, 0.1, 0.55 + 0.43 * level) * self.rng.uniform(0.93, 1.0, STEPS)
        else:
            phase = float(self.rng.uniform(0, 2 * np.pi))
            demand = (
                level * (0.45 + 0.3 * np.sin(2 * np.pi * steps / STEPS + phase)) * self.rng.uniform(0.8, 1.2, STEPS)
            )
        if self.fault is Component.NONE and self.rng.random() < 1 / 30:
            return np.zeros(STEPS)
        if self.fault is Component.SCHEDULER:
            # it needs at least a tenth more than its share, at most the complete GPU
            least = self._share_limit() * 1.1
            most = max(least, min(1.0, self._share_limit() * 4))
            demand = np.maximum(demand, least + (most - least) * self.strength) * self.rng.uniform(0.97, 1.03, STEPS)
        elif self.scheduler is not SchedulerPolicy.BEST_EFFORT:
            demand = np.minimum(demand, 0.9 * self._share_limit())
        # without use of the GPU these faults would not show
        if self.fault in (Component.NOISY_NEIGHBOUR, Component.LICENCE, Component.PCIE_LINK, Component.DRIVER):
            demand = np.maximum(demand, self.rng.uniform(0.25, 0.5))
        return np.clip(demand, 0.0, 1.0)

    def _neighbours(self, demand: Floats) -> Floats:
        """Return the share of the GPU that the other VMs on it would use together."""
        if self.sharers == 1:
            return np.zeros(STEPS)
        most = 1.0 if self.scheduler is SchedulerPolicy.BEST_EFFORT else (self.sharers - 1) / self.sharers
        neighbours_demand = most * self.rng.uniform(0.0, 0.9) * self.rng.uniform(0.6, 1.1, STEPS)
        if self.fault is Component.NOISY_NEIGHBOUR:
            # together they need at least 8 % more than the GPU has
            full = 1.0 - demand + (0.08 + 0.7 * self.strength) * self.rng.uniform(0.9, 1.1, STEPS)
            return np.where(self.on, np.maximum(neighbours_demand, full), neighbours_demand)
        if self.scheduler is SchedulerPolicy.BEST_EFFORT:
            # the GPU is enough for all, sometimes only just
            return np.minimum(neighbours_demand, 0.97 - np.minimum(demand, 0.97))
        return neighbours_demand

    # --- what it gets ---------------------------------------------------------------------------------------------

    def _effect(self, least: float, most: float) -> Floats:
        """Return the size of the fault's effect in each step, 0 in steps without it.

        It is `least` at strength 0 and `most` at strength 1, with some noise.
        """
        size = least + (most - least) * self.strength
        return np.where(self.on, size * self.rng.uniform(0.85, 1.15, STEPS), 0.0)

    def _series(self) -> dict[str, Floats]:
        """Return all series of the VM, its neighbours, its GPU and its host, with the effects of the fault."""
        rng, fault = self.rng, self.fault
        demand = self._demand()
        neighbours_demand = self._neighbours(demand)
        ready = rng.gamma(1.2, 0.008, STEPS) + (rng.random(STEPS) < 0.04) * rng.uniform(0.0, 0.12, STEPS)
        if fault is Component.CPU_READY:
            ready = ready + self._effect(0.05, 0.35)  # 5 % a vCPU is where VMware's advice begins (KB 2002181)
        swapping, balloon, swapped = self._reclaimed_memory()
        latency = self._latency(swapping)
        dropped_share = self._dropped_packets(ready)
        lost_to_errors = self._time_lost_to_errors()
        slow_link = self._effect(0.06, 0.45) if fault is Component.PCIE_LINK else np.zeros(STEPS)
        remote = self._effect(0.06, 0.3) if fault is Component.REMOTE_NUMA else np.zeros(STEPS)
        memory, paging = self._frame_buffer(demand)
        paged_cpu, paged_memory = 0.6 * paging, 0.5 * paging  # the guest moves what does not fit into its own memory
        # while the VM waits for something else, it does not use the GPU
        # each cause takes its share of the time that the others leave
        waiting = 1.0 - (1 - slow_link) * (1 - remote) * (1 - paging) * (1 - np.minimum(0.8, 0.8 * ready))
        waiting = 1.0 - (1 - waiting) * (1 - swapping) * (1 - np.clip((latency - 15) / 400, 0, 0.5))
        waiting = 1.0 - (1 - waiting) * (1 - np.clip(dropped_share * 4, 0, 0.6))
        requested_use = demand * (1 - waiting) * (1 - lost_to_errors)  # the share of the GPU that the VM requests
        clock, heat, power_short, temperature_limit = self._throttling()
        requested_use = np.minimum(1.0, requested_use / clock)  # the same work keeps a slower GPU busy for longer
        share_limit = self._share_limit()
        if fault is Component.LICENCE:
            # full speed for 20 minutes, then reduced (NVIDIA licensing guide)
            unlicensed = float(0.25 - 0.2 * self.strength)
            requested_use = np.where(
                self.on, np.minimum(requested_use, unlicensed * rng.uniform(0.9, 1.05, STEPS)), requested_use
            )
        if fault is Component.DRIVER:
            requested_use = np.where(self.on, 0.0, requested_use)
            memory = np.where(self.on, 0.002, memory)
        # on a full GPU a VM gets an equal part, or a part in proportion to its request if that is more
        fair = np.maximum(1.0 / self.sharers, requested_use / np.maximum(requested_use + neighbours_demand, 1e-9))
        own_use = (
            np.minimum(requested_use, np.maximum(1.0 - neighbours_demand, fair))
            if share_limit == 1.0
            else np.minimum(requested_use, share_limit)
        )
        neighbours_use = np.minimum(neighbours_demand, 1.0 - own_use)
        total = own_use + neighbours_use
        cpu = np.clip(self._cpu(demand, own_use, remote, ready) + paged_cpu, 0.0, 1.0 - np.minimum(ready, 0.9))
        gpu_clock = (
            self.gpu.mhz * np.where(total > 0.05, rng.uniform(0.95, 1.0, STEPS), rng.uniform(0.15, 0.6, STEPS)) * clock
        )
        temperature = self._temperature(total, temperature_limit)
        watts = self.gpu.watts * np.minimum(1.0, 0.12 + 0.82 * total * clock**2 * rng.uniform(0.9, 1.1, STEPS))
        watts = np.where(power_short > 0, self.gpu.watts * rng.uniform(0.96, 1.0, STEPS), watts)
        vgpu_mib = self.gpu.mib // self.slots
        kb = 1024.0
        net = rng.lognormal(5.5, 1.2) * rng.lognormal(0, 0.6, STEPS) * (1 - np.clip(dropped_share * 5, 0, 0.8))
        packets = net * 20 / 1.2
        disk = rng.lognormal(6, 1.2) * rng.lognormal(0, 0.7, STEPS) + 3000 * swapping
        active = rng.uniform(0.1, 0.7) * rng.uniform(0.8, 1.2, STEPS) + paged_memory
        active = self.memory_mib * kb * np.clip(active, 0, 0.98)
        consumed = self.memory_mib * kb * np.clip(rng.uniform(0.5, 1.0) - balloon - swapped, 0.05, 1.0)
        host_use = np.clip(rng.uniform(0.15, 0.8) + 1.2 * np.where(fault is Component.CPU_READY, ready, 0), 0, 1)
        host_memory = np.clip(rng.uniform(0.3, 0.9) + (0.25 if fault is Component.MEMORY_RECLAIMED else 0), 0, 0.99)
        width, generation = self._link(total)
        errors = self._error_count()
        smi_use = 10_000 * np.clip(own_use + rng.normal(0, 0.02, STEPS), 0, 1)
        return {
            "vm:cpu.usagemhz.average": cpu * self.vcpus * self.hardware.mhz,
            "vm:cpu.ready.summation": ready * self.vcpus * 20_000,
            "vm:mem.active.average": active,
            "vm:mem.consumed.average": consumed,
            "vm:mem.vmmemctl.average": balloon * self.memory_mib * kb,
            "vm:mem.swapped.average": swapped * self.memory_mib * kb,
            "vm:disk.usage.average": disk,
            "vm:disk.maxTotalLatency.latest": latency,
            "vm:net.usage.average": net,
            "vm:net.droppedRx.summation": packets * dropped_share,
            "vm:net.droppedTx.summation": packets * dropped_share * rng.uniform(0, 0.2),
            "vm:gpu.utilization.average": 10_000 * own_use,
            "vm:gpu.mem.used.average": memory * vgpu_mib * kb,
            "vm:smi.vgpu.utilization.latest": smi_use,
            "vm:smi.vgpu.encoder.latest": np.zeros(STEPS),
            "vm:smi.vgpu.licensed.latest": np.where((fault is Component.LICENCE) & self.on, 0.0, 1.0),
            "host:cpu.usagemhz.average": host_use
            * self.hardware.cores
            * self.hardware.mhz
            * rng.uniform(0.9, 1.0, STEPS),
            "host:mem.consumed.average": host_memory * self.hardware.memory_gib * kb * kb * np.ones(STEPS),
            "host:disk.maxTotalLatency.latest": np.maximum(latency, rng.gamma(2, 2, STEPS)),
            "host:net.usage.average": net + rng.lognormal(8, 1, STEPS),
            "gpu:gpu.utilization.average": 10_000 * total,
            "gpu:gpu.mem.used.average": np.minimum(
                self.gpu.mib, (memory + (self.sharers - 1) * rng.uniform(0.2, 0.9)) * vgpu_mib
            )
            * kb,
            "gpu:gpu.temperature.average": temperature,
            "gpu:gpu.power.used.latest": watts,
            "gpu:smi.gpu.utilization.latest": 10_000 * np.clip(total + rng.normal(0, 0.03, STEPS), 0, 1),
            "gpu:smi.gpu.clock.latest": gpu_clock,
            "gpu:smi.gpu.temperature.latest": temperature + rng.integers(-1, 2, STEPS),
            "gpu:smi.gpu.eccUncorrected.latest": errors,
            "gpu:smi.gpu.pcieGeneration.latest": generation,
            "gpu:smi.gpu.pcieWidth.latest": width,
            "gpu:smi.gpu.slowedByHeat.latest": heat,
            "gpu:smi.gpu.slowedByPower.latest": power_short,
            "neighbours:gpu.utilization.average": 10_000 * neighbours_use,
        }

    def _reclaimed_memory(self) -> tuple[Floats, Floats, Floats]:
        """Return the share of time spent waiting for swapped memory, and the ballooned and swapped shares of memory."""
        balloon, swapped = np.zeros(STEPS), np.zeros(STEPS)
        if self.fault is Component.MEMORY_RECLAIMED:
            grows = np.cumsum(self.on) / max(1, self.on.sum())
            swapped = (0.01 + 0.25 * self.strength) * (0.5 + 0.5 * grows) * self.on
            balloon = np.where(self.on, (0.02 + 0.35 * self.strength) * self.rng.uniform(0.7, 1.0), 0.0)
            return (
                np.where(self.on, (0.04 + 0.4 * self.strength) * self.rng.uniform(0.7, 1.2, STEPS), 0.0),
                balloon,
                swapped,
            )
        if self.rng.random() < 0.15:
            swapped = swapped + self.rng.uniform(0.005, 0.15)  # swapped once, and not used since
        if self.rng.random() < 0.07:
            balloon = balloon + self.rng.uniform(0.005, 0.08)  # memory that its guest does not need
        return np.zeros(STEPS), balloon, swapped

    def _latency(self, swapping: Floats) -> Floats:
        """Return the highest latency of its disks in ms."""
        usual = self.rng.gamma(3, 1.2) + self.rng.gamma(1.5, 1.5, STEPS) + 60 * swapping
        if self.fault is Component.DATASTORE:
            return np.where(self.on, usual + (18 + 180 * self.strength) * self.rng.uniform(0.6, 1.4, STEPS), usual)
        if self.rng.random() < 0.3:
            for _ in range(int(self.rng.integers(1, 4))):  # backups, and snapshots that are taken
                begin = int(self.rng.integers(0, STEPS - 6))
                usual[begin : begin + int(self.rng.integers(1, 6))] += self.rng.uniform(20, 200)
        return usual

    def _dropped_packets(self, ready: Floats) -> Floats:
        """Return the share of dropped packets. A waiting vCPU also drops packets, because its receive ring fills up."""
        lost = 0.02 * np.clip(ready - 0.1, 0, 1) + (self.rng.random(STEPS) < 0.05) * self.rng.uniform(0, 0.004, STEPS)
        return lost + self._effect(0.004, 0.12) if self.fault is Component.NETWORK else lost

    def _frame_buffer(self, demand: Floats) -> tuple[Floats, Floats]:
        """Return for each step the share of the frame buffer in use, and the share of time spent waiting for pages.

        A full frame buffer alone is no fault: frameworks that preallocate (JAX takes 75 %, TensorFlow and vLLM nearly
        all that is free) keep it full from their first second. There are two faults: the guest pages, which costs CPU
        and memory of the guest while the GPU waits, or the application ends for want of memory and starts again.
        """
        rng = self.rng
        if self.fault is not Component.FRAME_BUFFER:
            if rng.random() < 0.25:
                return np.full(STEPS, rng.uniform(0.95, 0.995)), np.zeros(STEPS)
            level = rng.uniform(0.15, 0.97)
            used = level * rng.uniform(0.97, 1.03, STEPS) * np.where(demand > 0.02, 1.0, 0.9)
            return np.clip(used, 0, 0.995), np.zeros(STEPS)
        level_before = rng.uniform(0.5, 0.93) * rng.uniform(0.97, 1.03, STEPS)
        full = np.where(self.on, rng.uniform(0.965, 1.0, STEPS), np.clip(level_before, 0, 0.96))
        if rng.random() < 0.6:
            return full, np.clip(self._effect(0.08, 0.5) * rng.uniform(0.2, 1.8, STEPS), 0, 0.9)
        ends = self.on & (rng.random(STEPS) < 0.1 + 0.3 * self.strength)
        ends[int(rng.choice(np.flatnonzero(self.on)))] = True  # the application ends at least once
        return np.where(ends, full * rng.uniform(0.1, 0.6, STEPS), full), np.where(
            ends, rng.uniform(0.5, 0.95, STEPS), 0
        )

    def _time_lost_to_errors(self) -> Floats:
        """Return the share of time that the VM loses to errors: programs on the GPU end and start again."""
        if self.fault is not Component.ECC:
            return np.zeros(STEPS)
        self.hits = self.on & (self.rng.random(STEPS) < 0.06 + 0.4 * self.strength)
        self.hits[int(np.flatnonzero(self.on)[self.rng.integers(self.on.sum())])] = True
        return np.where(self.hits, self.rng.uniform(0.5, 1.0, STEPS), 0.0)

    def _error_count(self) -> Floats:
        """Return the counter of uncorrected ECC errors in each step; old errors before the first step are no fault."""
        old = float(self.rng.integers(1, 20)) if self.rng.random() < 0.12 else 0.0
        if self.fault is not Component.ECC:
            return np.full(STEPS, old)
        return old + np.cumsum(self.hits * self.rng.integers(1, 4, STEPS)).astype(float)

    def _throttling(self) -> tuple[Floats, Floats, Floats, bool]:
        """Return three arrays by step, and whether the GPU is slowed by heat.

        The arrays: the share of the full clock; 1 where heat slows the GPU; 1 where the power limit does.
        """
        clock, heat, power = np.ones(STEPS), np.zeros(STEPS), np.zeros(STEPS)
        if self.fault is not Component.THROTTLING:
            power = (self.rng.random(STEPS) < 0.03).astype(float) * (self.rng.random() < 0.3)
            if self.rng.random() < 0.12:
                clock = clock * self.rng.uniform(0.8, 0.95)  # an admin has locked the clock: no fault
            return clock, heat, power, False
        by_heat = bool(self.rng.random() < 0.6)
        slowed = self.on & (self.rng.random(STEPS) < 0.35 + 0.6 * self.strength)
        clock = np.where(slowed, 1.0 - (0.08 + 0.45 * self.strength) * self.rng.uniform(0.8, 1.2, STEPS), clock)
        (heat if by_heat else power)[slowed] = 1.0
        return clock, heat, power, by_heat

    def _temperature(self, total: Floats, too_hot: bool) -> NDArray[Any]:
        """Return the temperature of the GPU in °C by its use; with `too_hot`, above its limit while the fault is on."""
        room = self.rng.uniform(24, 44)
        usual = np.minimum(room + (self.gpu.hot_c - 34) * (0.15 + 0.75 * total), self.gpu.hot_c - 1.0)
        hot = self.gpu.hot_c + self.rng.uniform(-1, 4, STEPS)
        return np.round(np.where(self.on & too_hot, hot, usual))

    def _cpu(self, demand: Floats, own_use: Floats, remote: Floats, ready: Floats) -> Floats:
        """Return the share of its vCPUs that the VM uses."""
        cpu_by_gpu_use = self.rng.uniform(0.1, 0.6)
        use = self.rng.uniform(0.03, 0.15) + cpu_by_gpu_use * (
            own_use if self.fault is not Component.DRIVER else demand
        )
        if self.fault is Component.DRIVER:
            use = np.where(self.on, use + 0.3 + 0.5 * self.strength, use)  # the guest draws and counts by its CPU
        use = use * (1 + 1.5 * remote) * self.rng.uniform(0.9, 1.1, STEPS)
        return np.clip(use, 0.0, 1.0 - np.minimum(ready, 0.9))

    def _link(self, total: Floats) -> tuple[Floats, Floats]:
        """Return lanes and generation of the GPU's link. An idle link has a lower generation."""
        lanes_of_fault = 16.0
        if self.fault is Component.PCIE_LINK:
            lanes_of_fault = float(self.rng.choice((8, 4) if self.strength > 0.4 else (8,)))
        width = np.where(self.on & (lanes_of_fault < 16), lanes_of_fault, 16.0)
        return width, np.where(total > 0.03, 4.0, 1.0)

    # --- what gpuops knows of it --------------------------------------------------------------------------------------

    def _facts(self) -> CaseFacts:
        """Return the facts of the VM, its host and its GPU; those that not every host shows are sometimes None."""
        rng, fault = self.rng, self.fault
        remote = None
        if rng.random() < 0.8:
            remote = (
                rng.uniform(0.2, 1.0)
                if fault is Component.REMOTE_NUMA
                else rng.uniform(0.0, 0.15) * (rng.random() < 0.5)
            )
        host_driver = int(rng.choice((535, 550)))
        guest_driver = host_driver if rng.random() < 0.6 else host_driver - 15
        if fault is Component.DRIVER:
            guest_driver = host_driver + int(rng.choice((15, 30)))  # newer than the host's
        # whether the host shows its scheduler, its power limits, and its drivers
        is_known = rng.random(3) < (0.5, 0.5, 0.6)
        return CaseFacts(
            self.vcpus,
            self.memory_mib,
            self.hardware.mhz,
            self.hardware.cores,
            self.hardware.memory_gib * 1024,
            self.gpu.mib // self.slots,
            self.gpu.mib,
            self.slots,
            self.sharers,
            self.scheduler if is_known[0] else None,
            16,
            self.gpu.mhz,
            self.gpu.watts if is_known[1] else None,
            None if remote is None else float(remote),
            host_driver if is_known[2] else None,
            guest_driver if is_known[2] else None,
        )

    def _with_gaps(self, series: dict[str, Floats]) -> dict[str, Floats]:
        """Return the series as stored: integers, nvidia-smi in every fourth step, some steps and series missing."""
        rng = self.rng
        # not every site reads nvidia-smi through the host's shell
        reads_smi = bool(rng.random() < 0.75)
        is_smi_step = (np.arange(STEPS) + int(rng.integers(4))) % 4 == 0
        is_stored = rng.random(STEPS) >= 0.03
        stored = {}
        for name, values in series.items():
            if ":smi." in name:
                if reads_smi:
                    stored[name] = np.where(is_smi_step & is_stored, np.round(values), np.nan)
            elif rng.random() >= 0.03:
                stored[name] = np.where(is_stored, np.round(values), np.nan)
        return stored
