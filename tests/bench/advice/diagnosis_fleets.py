"""Makes labelled cases of fleets that are unlike the set-up that models are trained on. Shares no code with it.

Other GPUs, sizes of VMs and hosts, workloads with bursts of 20 s (which five-minute steps average), days and nights,
faults that come and go, long gaps, counters that a vCenter does not keep, windows of two hours to a day, and two faults
at once. Values are kept as the store keeps them: five significant bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import FAULTS, SERIES, CaseFacts, Component, DiagnosisCase, LabelledCase
from gpuops.model.devices.scheduler import SchedulerPolicy

Floats = NDArray[Any]

SAMPLES: Final = 15
"""Of 20 s in a step of five minutes."""
GPUS: Final = {
    "t4": (15_360, 70, 1590, 16),
    "l4": (23_034, 72, 2040, 8),
    "l40s": (46_068, 350, 2520, 16),
    "a16": (15_356, 62, 1755, 8),
    "h100": (81_559, 350, 1755, 16),
}
"""Frame buffer in MiB, limit of power in W, clock in MHz, lanes."""
FLEETS: Final[dict[str, dict[str, Any]]] = {
    "office": {"gpus": ("t4", "a16"), "vcpus": (2, 4), "gib": (4, 8, 12), "load": "people"},
    "studio": {"gpus": ("l40s",), "vcpus": (8, 12), "gib": (32, 48), "load": "renders"},
    "models": {"gpus": ("h100", "l40s"), "vcpus": (16, 32, 64), "gib": (128, 256), "load": "epochs"},
    "answers": {"gpus": ("l4", "h100"), "vcpus": (4, 8), "gib": (16, 24), "load": "requests"},
    "mixed": {"gpus": tuple(GPUS), "vcpus": (2, 8, 24), "gib": (8, 64, 96), "load": "any"},
}
_NEVER_TOGETHER: Final = (
    {Component.DRIVER, Component.LICENCE},  # without a driver nothing asks for a licence
    {Component.DRIVER, Component.NOISY_NEIGHBOUR},
    {Component.DRIVER, Component.SCHEDULER},
    {Component.DRIVER, Component.FRAME_BUFFER},
    {Component.DRIVER, Component.PCIE_LINK},
    {Component.DRIVER, Component.ECC},
    {Component.DRIVER, Component.THROTTLING},
    {Component.LICENCE, Component.NOISY_NEIGHBOUR},
    {Component.LICENCE, Component.SCHEDULER},
    {Component.SCHEDULER, Component.NOISY_NEIGHBOUR},  # shares of their own are what that scheduler is for
)


class Way(StrEnum):
    """How gpuops is run: what it can know of a VM. Labels and counters of a case are the same for each way."""

    VCENTER = "vCenter alone"
    NVIDIA_SMI = "vCenter and the hosts' nvidia-smi"
    GUESTS = "vCenter and answers of guests"
    """Their driver and their licence."""


def fleet_cases(fleet: str, seed: int, count: int, way: Way | None = None) -> Iterator[LabelledCase]:
    """So many cases of a fleet: a third without a fault, a fifth with two; the same for the same seed.

    `way`: as gpuops would know them; None = some hosts are asked, and some facts are known.
    """
    kind = sorted(FLEETS).index(fleet)
    for number in range(count):
        rng = np.random.default_rng((97, kind, seed, number))
        yield _case(rng, FLEETS[fleet], _faults(rng), f"{fleet}-{seed}-{number}", way)


def _faults(rng: np.random.Generator) -> frozenset[Component]:
    how_many = int(rng.choice(3, p=(0.34, 0.46, 0.20)))
    while True:
        faults = {FAULTS[index] for index in rng.choice(len(FAULTS), how_many, replace=False)}
        if not any(pair <= faults for pair in _NEVER_TOGETHER):
            return frozenset(faults)


def _smooth(rng: np.random.Generator, count: int, memory: float) -> Floats:
    """Noise of mean 0 and deviation 1 that remembers itself from sample to sample."""
    noise = np.empty(count)
    value = rng.standard_normal()
    for at, shock in enumerate(rng.standard_normal(count) * np.sqrt(1 - memory**2)):
        value = memory * value + shock
        noise[at] = value
    return noise


def _spells(rng: np.random.Generator, count: int, share: float, length: float) -> NDArray[np.bool_]:
    """On for so large a share of the samples, in spells of that mean length."""
    on, is_on_at = bool(rng.random() < share), np.empty(count, bool)
    at = 0
    while at < count:
        mean = length if on else length * (1 - share) / max(share, 0.02)
        until = at + 1 + int(rng.exponential(mean))
        is_on_at[at:until] = on
        at, on = until, not on
    return is_on_at


def _load(rng: np.random.Generator, kind: str, count: int) -> Floats:
    """What a VM asks of its GPU, 20 s by 20 s, alone."""
    if kind == "any":
        kind = str(rng.choice(("people", "renders", "epochs", "requests")))
    if kind == "people":
        is_busy = _spells(rng, count, 0.75, 120)
        return is_busy * np.clip(rng.uniform(0.05, 0.4) * np.exp(0.6 * _smooth(rng, count, 0.7)), 0, 1)
    if kind == "renders":
        renders = _spells(rng, count, rng.uniform(0.3, 0.8), 60)
        return np.where(renders, rng.uniform(0.6, 1.0), 0.06) * np.clip(1 + 0.06 * _smooth(rng, count, 0.3), 0, 1.1)
    if kind == "epochs":
        period = int(rng.integers(20, 140))
        loads = (np.arange(count) + int(rng.integers(period))) % period < period * 0.1
        return np.where(loads, 0.15, rng.uniform(0.5, 1.0)) * np.clip(1 + 0.03 * _smooth(rng, count, 0.5), 0, 1.1)
    day = 1 + 0.7 * np.sin(2 * np.pi * (np.arange(count) / 4320 + rng.random()))
    return np.clip(rng.uniform(0.1, 0.5) * day * np.exp(0.35 * _smooth(rng, count, 0.9)), 0, 1)


def _case(
    rng: np.random.Generator, fleet: dict[str, Any], faults: frozenset[Component], name: str, way: Way | None
) -> LabelledCase:
    steps = int(rng.choice((24, 36, 72, 144, 288), p=(0.15, 0.25, 0.3, 0.2, 0.1)))
    count = steps * SAMPLES
    mib, limit_w, mhz, lanes = GPUS[str(rng.choice(fleet["gpus"]))]
    vcpus, gib = int(rng.choice(fleet["vcpus"])), int(rng.choice(fleet["gib"]))
    core_mhz, cores, host_gib = int(rng.choice((2100, 2400, 3100, 3600))), int(rng.choice((32, 56, 96, 128))), 768
    slots = int(rng.choice((1, 2, 4, 8, 16) if Component.NOISY_NEIGHBOUR not in faults else (2, 4, 8, 16)))
    if Component.SCHEDULER in faults:
        slots = max(slots, 2)
    sharers = int(rng.integers(1, slots + 1))
    if Component.NOISY_NEIGHBOUR in faults:
        sharers = max(2, sharers)
    strong = {fault: float(rng.power(0.8)) for fault in sorted(faults)}  # a set has no order of its own
    when = _spells(rng, count, rng.uniform(0.35, 0.95), count / 5)
    if not when.any():
        when[count // 3 :] = True
    if rng.random() < 0.5:
        when[:] = True

    def extent(fault: Component, least: float, most: float) -> Floats:
        if fault not in faults:
            return np.zeros(count)
        return when * (least + (most - least) * strong[fault]) * np.exp(0.15 * _smooth(rng, count, 0.8))

    # the scheduler
    policy = SchedulerPolicy.BEST_EFFORT if rng.random() < 0.75 else SchedulerPolicy.EQUAL_SHARE
    if Component.NOISY_NEIGHBOUR in faults:
        policy = SchedulerPolicy.BEST_EFFORT
    if Component.SCHEDULER in faults:
        policy = SchedulerPolicy.EQUAL_SHARE if sharers > 1 and rng.random() < 0.5 else SchedulerPolicy.FIXED_SHARE
    gpu_share = {
        SchedulerPolicy.BEST_EFFORT: 1.0,
        SchedulerPolicy.EQUAL_SHARE: 1 / sharers,
        SchedulerPolicy.FIXED_SHARE: 1 / slots,
    }[policy]

    # demand
    asks = np.clip(_load(rng, fleet["load"], count), 0, 1)
    if faults & {Component.LICENCE, Component.PCIE_LINK, Component.DRIVER, Component.NOISY_NEIGHBOUR, Component.ECC}:
        asks = np.maximum(asks, np.clip(0.3 + 0.08 * _smooth(rng, count, 0.6), 0, 1))
    if Component.SCHEDULER in faults:
        asks = np.maximum(asks, np.minimum(1.0, gpu_share * (1.17 + 2.5 * strong[Component.SCHEDULER])))
    elif policy is not SchedulerPolicy.BEST_EFFORT:
        asks = np.minimum(asks, gpu_share * 0.92)
    theirs = np.zeros(count)
    for _ in range(sharers - 1):
        theirs = theirs + rng.uniform(0.1, 1.0) / sharers * _load(rng, fleet["load"], count)
    if Component.NOISY_NEIGHBOUR in faults:
        press = 1 - asks + 0.11 + 0.65 * strong[Component.NOISY_NEIGHBOUR] * rng.uniform(0.7, 1.3, count)
        theirs = np.where(when, np.maximum(theirs, press), np.minimum(theirs, 1 - asks))
    elif policy is SchedulerPolicy.BEST_EFFORT:
        theirs = np.minimum(theirs, np.maximum(0, 0.99 - asks))
    else:
        theirs = np.minimum(theirs, (sharers - 1) / sharers)

    # what holds it up beside the GPU
    ready = np.abs(0.012 * _smooth(rng, count, 0.5)) * rng.uniform(0.3, 2.0) + extent(Component.CPU_READY, 0.055, 0.27)
    swap_wait = extent(Component.MEMORY_RECLAIMED, 0.07, 0.37)
    swapped: Floats = rng.uniform(0.003, 0.12) * (rng.random() < 0.18) * np.ones(count)
    ballooned: Floats = rng.uniform(0.003, 0.06) * (rng.random() < 0.1) * np.ones(count)
    if Component.MEMORY_RECLAIMED in faults:
        much = strong[Component.MEMORY_RECLAIMED]
        swapped = np.maximum.accumulate(when * (0.012 + 0.2 * much) * np.linspace(0.6, 1, count))
        ballooned = when * (0.02 + 0.3 * much) * (rng.random() < 0.8)
    latency: Floats = rng.uniform(1, 9) * np.exp(0.5 * _smooth(rng, count, 0.6)) + 120 * swap_wait
    latency = latency + extent(Component.DATASTORE, 20, 160)
    backup = _spells(rng, count, 0.1, 45) * (rng.random() < 0.35)
    latency = latency + backup * rng.uniform(15, 150)
    lost = (
        extent(Component.NETWORK, 0.005, 0.1) + 0.003 * (rng.random(count) < 0.02) + 0.015 * np.maximum(0, ready - 0.12)
    )
    narrow = extent(Component.PCIE_LINK, 0.09, 0.38)
    remote_loss = extent(Component.REMOTE_NUMA, 0.075, 0.31)
    evicts, dies = np.zeros(count), np.zeros(count, bool)
    if Component.FRAME_BUFFER in faults:
        if (
            rng.random() < 0.55
        ):  # allocations that do not fit are moved to the guest's memory, and back when they are used
            moves = np.clip(1 + 0.8 * _smooth(rng, count, 0.85), 0, 2.5)
            evicts = np.clip(extent(Component.FRAME_BUFFER, 0.1, 0.36) * moves, 0, 0.85)
        else:  # an allocation fails, the program ends, and somebody starts it again minutes later
            dies = when & _spells(rng, count, 0.06 + 0.2 * strong[Component.FRAME_BUFFER], 11)
            dies[int(rng.choice(np.flatnonzero(when))) :][:11] = True
    hits = np.zeros(count, bool)
    if Component.ECC in faults:
        hits = when & (rng.random(count) < (0.15 + 3 * strong[Component.ECC]) / SAMPLES / 4)
        hits[rng.choice(np.flatnonzero(when))] = True
    down = np.convolve(hits, np.ones(SAMPLES), "full")[:count] > 0
    clock = 1 - np.minimum(0.7, extent(Component.THROTTLING, 0.11, 0.52))
    if Component.THROTTLING not in faults and rng.random() < 0.09:
        clock = clock * rng.uniform(0.75, 0.93)  # locked by an administrator
    speed = (
        (1 - narrow) * (1 - remote_loss) * (1 - evicts) * ~dies * (1 - swap_wait) * (1 - np.minimum(0.7, 0.9 * ready))
    )
    speed = speed * (1 - np.clip(3 * lost, 0, 0.5)) * (1 - np.clip((latency - 20) / 500, 0, 0.45)) * ~down
    tries = np.minimum(1, asks * speed / clock)
    if Component.LICENCE in faults:
        tries = np.where(when, np.minimum(tries, 0.22 - 0.17 * strong[Component.LICENCE]), tries)
    if Component.DRIVER in faults:
        tries = tries * ~when
    if policy is SchedulerPolicy.BEST_EFFORT:
        mine = np.where(
            tries + theirs > 1,
            np.maximum(np.minimum(tries, 1 / sharers), tries / np.maximum(tries + theirs, 1e-6)),
            tries,
        )
        others_use = np.minimum(theirs, 1 - mine)
    else:
        mine, others_use = np.minimum(tries, gpu_share), theirs
    whole = np.minimum(1, mine + others_use)

    # what the counters say
    needs = mine if Component.DRIVER not in faults else asks
    works = rng.uniform(0.02, 0.2) + rng.uniform(0.05, 0.7) * needs * (1 + 1.4 * remote_loss)
    if Component.DRIVER in faults:
        works = works + when * (0.26 + 0.43 * strong[Component.DRIVER])
    works = works + 0.45 * evicts
    works = np.clip(works * np.exp(0.1 * _smooth(rng, count, 0.4)), 0.01, 1 - np.minimum(ready, 0.8))
    filled = np.clip(rng.uniform(0.2, 0.96) * (1 + 0.02 * _smooth(rng, count, 0.95)), 0.02, 0.997)
    if fleet["load"] in ("epochs", "requests", "any") and rng.random() < 0.4:
        filled = np.full(count, rng.uniform(0.95, 0.995))  # its framework takes nearly all at its start
    if Component.FRAME_BUFFER in faults:
        crowded = np.clip(rng.uniform(0.975, 0.99) + 0.006 * _smooth(rng, count, 0.6), 0, 1)
        filled = np.where(when, np.where(dies, 0.25, crowded), np.minimum(filled, 0.94))
    if Component.DRIVER in faults:
        filled = np.where(when, 0.003, filled)
    by_heat = Component.THROTTLING in faults and rng.random() < 0.5
    limit_c = float(rng.integers(82, 93))
    warm = rng.uniform(22, 40) + (limit_c - 42) * np.convolve(0.1 + 0.8 * whole, np.ones(9) / 9, "same")
    warm = np.minimum(warm, limit_c - 2)
    slowed = when & (Component.THROTTLING in faults)
    warm = np.where(slowed & by_heat, limit_c + rng.uniform(-1, 3), warm)
    draws = limit_w * np.minimum(1, 0.15 + 0.8 * whole * clock**2)
    draws = np.where(slowed & (not by_heat), limit_w * 0.98, draws)
    runs = np.where(whole > 0.03, mhz * (0.97 + 0.02 * _smooth(rng, count, 0.5)), mhz * 0.2) * clock
    wide = lanes * np.ones(count)
    if Component.PCIE_LINK in faults:
        wide = np.where(when, lanes / (2 if strong[Component.PCIE_LINK] < 0.6 else 4), wide)
    traffic = np.exp(rng.normal(5, 1.5) + 0.7 * _smooth(rng, count, 0.7)) * (1 - np.clip(4 * lost, 0, 0.7))
    reads = np.exp(rng.normal(6, 1.3) + 0.8 * _smooth(rng, count, 0.6)) * (1 + 6 * backup) + 2500 * swap_wait
    kb, host_mhz = gib * 1024.0 * 1024.0, cores * core_mhz
    host_load = np.clip(rng.uniform(0.1, 0.75) + 0.08 * _smooth(rng, count, 0.9), 0.02, 0.98)
    if Component.CPU_READY in faults:
        host_load = np.where(when, np.maximum(host_load, 0.8), host_load)
    host_filled = np.clip(rng.uniform(0.3, 0.93) * np.ones(count), 0, 1)
    if Component.MEMORY_RECLAIMED in faults:
        host_filled = np.maximum(host_filled, 0.9)
    old_errors = float(rng.integers(1, 40) * (rng.random() < 0.15))
    fine = {
        "vm:cpu.usagemhz.average": works * vcpus * core_mhz,
        "vm:cpu.ready.summation": ready * vcpus * 20_000,
        "vm:mem.active.average": kb
        * np.clip(rng.uniform(0.05, 0.8) * (1 + 0.1 * _smooth(rng, count, 0.9)) + 0.35 * evicts, 0.01, 1),
        "vm:mem.consumed.average": kb * np.clip(rng.uniform(0.6, 1) - swapped - ballooned, 0.05, 1),
        "vm:mem.vmmemctl.average": kb * ballooned,
        "vm:mem.swapped.average": kb * swapped,
        "vm:disk.usage.average": reads,
        "vm:disk.maxTotalLatency.latest": latency,
        "vm:net.usage.average": traffic,
        "vm:net.droppedRx.summation": np.floor(traffic * 16 * lost + rng.random(count) * 0.5),
        "vm:net.droppedTx.summation": np.floor(traffic * lost),
        "vm:gpu.utilization.average": 1e4 * mine,
        "vm:gpu.mem.used.average": filled * mib / slots * 1024,
        "vm:smi.vgpu.utilization.latest": 1e4 * mine,
        "vm:smi.vgpu.encoder.latest": np.zeros(count),
        "vm:smi.vgpu.licensed.latest": 1.0 - (when & (Component.LICENCE in faults)),
        "host:cpu.usagemhz.average": host_load * host_mhz,
        "host:mem.consumed.average": host_filled * host_gib * 1024.0 * 1024.0,
        "host:disk.maxTotalLatency.latest": np.maximum(latency, np.abs(5 * _smooth(rng, count, 0.5))),
        "host:net.usage.average": traffic + np.exp(rng.normal(8, 1)),
        "gpu:gpu.utilization.average": 1e4 * whole,
        "gpu:gpu.mem.used.average": np.minimum(mib, mib / slots * (filled + (sharers - 1) * rng.uniform(0.2, 0.95)))
        * 1024,
        "gpu:gpu.temperature.average": warm,
        "gpu:gpu.power.used.latest": draws,
        "gpu:smi.gpu.utilization.latest": 1e4 * whole,
        "gpu:smi.gpu.clock.latest": runs,
        "gpu:smi.gpu.temperature.latest": warm + 1,
        "gpu:smi.gpu.eccUncorrected.latest": old_errors + np.cumsum(hits * 2.0),
        "gpu:smi.gpu.pcieGeneration.latest": np.where(whole > 0.02, 4.0, 1.0),
        "gpu:smi.gpu.pcieWidth.latest": wide,
        "gpu:smi.gpu.slowedByHeat.latest": 1.0 * (slowed & by_heat),
        "gpu:smi.gpu.slowedByPower.latest": 1.0 * (slowed & (not by_heat)),
        "neighbours:gpu.utilization.average": 1e4 * others_use,
    }
    assert fine.keys() == set(SERIES), "each counter that there is"
    host_driver = int(rng.choice((535, 550, 570, 580)))
    guest_driver = host_driver + (15 if Component.DRIVER in faults else -int(rng.choice((0, 0, 15))))
    remote: float | None = float(rng.uniform(0, 0.12))
    if Component.REMOTE_NUMA in faults:
        remote = float(rng.uniform(0.25, 1))
    if rng.random() < 0.28:
        remote = None
    told_drivers, told_scheduler = rng.random() < 0.55, rng.random() < 0.4
    limit_known = rng.random() < 0.6
    guest_known = told_drivers
    if way is not None:  # a host's settings have both, unless it refuses them; its nvidia-smi has the limit of power
        told_scheduler = told_drivers = rng.random() < 0.93
        limit_known, guest_known = way is Way.NVIDIA_SMI, way is Way.GUESTS
    facts = CaseFacts(
        vcpus=vcpus,
        memory_mib=gib * 1024,
        cpu_mhz=core_mhz,
        host_cores=cores,
        host_memory_mib=host_gib * 1024,
        vgpu_mib=mib // slots,
        gpu_mib=mib,
        most_per_gpu=slots,
        sharers=sharers,
        scheduler=policy if told_scheduler else None,
        pcie_width=lanes,
        clock_mhz=mhz,
        power_limit_w=limit_w if limit_known else None,
        remote_memory=remote,
        host_driver=host_driver if told_drivers else None,
        guest_driver=guest_driver if guest_known else None,
    )
    return LabelledCase(name, DiagnosisCase(300, _as_stored(rng, fine, steps, way), facts), faults)


def _as_stored(rng: np.random.Generator, fine: dict[str, Floats], steps: int, way: Way | None) -> dict[str, Floats]:
    """Averages of five minutes; nvidia-smi is one sample in twenty minutes; gaps, and counters that are not kept."""
    asks_hosts, first = rng.random() < 0.76, int(rng.integers(4))
    if way is not None:
        asks_hosts = way is Way.NVIDIA_SMI
    has_sample = np.ones(steps, bool)
    if rng.random() < 0.4:  # not observed for a while
        begin = int(rng.integers(steps))
        has_sample[begin : begin + int(rng.integers(1, max(2, steps // 4)))] = False
    has_sample &= rng.random(steps) >= rng.choice((0.0, 0.02, 0.1))
    series = {}
    for name, values in fine.items():
        whole = values.reshape(steps, SAMPLES)
        if ":smi." in name:
            if not asks_hosts and not (way is Way.GUESTS and name == "vm:smi.vgpu.licensed.latest"):
                continue
            is_stored = has_sample & ((np.arange(steps) + first) % 4 == 0)
            value = whole[:, 7]
        else:
            if rng.random() < 0.04:
                continue
            is_stored, value = has_sample, whole.mean(axis=1)
        series[name] = np.where(is_stored, _five_bits(np.round(value)), np.nan)
    return series


def _five_bits(values: Floats) -> Floats:
    _, exponents = np.frexp(np.maximum(values, 1))
    unit = np.exp2(np.maximum(exponents - 5, 0))
    return np.floor(values / unit) * unit + np.floor(unit / 2)
