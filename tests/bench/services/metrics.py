"""What a scrape of `gpuops metrics` costs on 500 hosts with 5,000 VMs: seconds, and of a core at one a minute.

The service is the product's: its reader, its page, its text. vCenter is our simulator in a process of its own, over
SOAP and TLS; the store holds twelve hours of every VM and of every GPU. Three worlds: nothing changes, so that each
scrape asks for changes and vCenter is read every five minutes; a VM is started or stopped before each scrape, so that
an answer, which costs a read, stands for fifty times what it took; and `observe` has looked since, as every 20 minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.clock import wall_clock
from gpuops.execute.site import Site
from gpuops.extras.observe.observing import EVERY_S
from gpuops.extras.observe.packing import Block
from gpuops.extras.observe.rolling_up import FINE_S
from gpuops.extras.observe.store import Measurements
from gpuops.extras.web.metrics_page import stands_s
from gpuops.extras.web.metrics_source import LONGEST_S, MetricSource
from gpuops.extras.web.metrics_view import MetricsWriter
from gpuops.model.measurements.measurement import HOST_COUNTERS, OF_GPUS, VM_COUNTERS
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import PowerOffVm
from gpuops.vsphere.connection import Connection
from tests.bench.nights.watch import FLEET, target_at
from tests.bench.simulator.simulators import our_simulator
from tests.bench.verdict import Figure, Result

SCRAPE_S: Final = 60.0
WITHIN_S: Final = 5.0
OF_A_CORE: Final = 2.0
ROUNDS: Final = 3
STEPS: Final = 12 * 3600 // FINE_S


def run() -> Iterator[Result]:
    """One service, scraped in each of the worlds."""
    with (
        our_simulator(FLEET) as served,
        Connection(target_at(served.endpoint)) as connection,
        tempfile.TemporaryDirectory() as folder,
        Site(connection, Path(folder), wall_clock) as site,
    ):
        _measure(site)
        source, writer = MetricSource(site), MetricsWriter("bench")
        for _ in range(2):  # the second one learns of changes, and so reads once more
            writer.text(source.values(follow=True))

        def scrape() -> tuple[float, float, bytes]:
            began, cpu = perf_counter(), process_time()
            text = writer.text(source.values(follow=True))
            return perf_counter() - began, process_time() - cpu, text

        quiet_s, quiet_cpu_s, text = scrape()
        busy = []
        for vm in _running(site, ROUNDS):
            task = connection.submit(PowerOffVm(vm), site.vcenter.inventory(), "somebody")
            assert task is not None and all(end.error is None for end in connection.wait([task], 60.0))
            busy.append(scrape())
        busy_s, busy_cpu_s = median(each[0] for each in busy), median(each[1] for each in busy)
        _measure(site, later=1)
        observed_s, observed_cpu_s, _ = scrape()
    seldom = (busy_cpu_s - quiet_cpu_s) / LONGEST_S + max(0.0, observed_cpu_s - quiet_cpu_s) / EVERY_S
    # the first scrape after the page has stood for its time reads again
    between_s = SCRAPE_S * ceil(stands_s(30.0, busy_s) / SCRAPE_S)
    yield Result(
        "metrics: 500 hosts, 5,000 VMs, a scrape a minute",
        (
            Figure("samples", float(sum(not line.startswith(b"#") for line in text.splitlines())), ""),
            Figure("size of the answer", len(text) / 1e6, "MB"),
            Figure("nothing changed: a scrape takes", quiet_s, "s", WITHIN_S),
            Figure("vCenter is read: a scrape takes", busy_s, "s", WITHIN_S),
            Figure("its CPU", busy_cpu_s, "CPU s"),
            Figure("observe has looked: a scrape takes", observed_s, "s", WITHIN_S),
            Figure("its CPU", observed_cpu_s, "CPU s"),
            Figure("nothing changes: of a core", 100 * (quiet_cpu_s / SCRAPE_S + seldom), "%", OF_A_CORE),
            Figure("something changes every minute: of a core", 100 * busy_cpu_s / between_s, "%", OF_A_CORE),
            Figure("and vCenter is read every", between_s, "s"),
        ),
    )


def _running(site: Site, count: int) -> list[str]:
    vms = site.vcenter.inventory().vms.values()
    return [vm.ref for vm in vms if vm.power is PowerState.ON][:count]


def _measure(site: Site, later: int = 0) -> None:
    """Twelve hours of all series of each VM with a vGPU and each host with GPUs; later by so many steps."""
    inventory = site.vcenter.inventory()
    until = int(inventory.taken_at.timestamp()) // FINE_S * FINE_S + later * FINE_S
    chance = np.random.default_rng(1)
    series = dict(_series(inventory))
    with Measurements.open(site.state_dir, "", inventory.vcenter) as store:
        begin = until - STEPS * FINE_S
        store.write(begin, {ref: _block(names, chance) for ref, names in series.items()})
        store.note_observed(begin, until)


def _series(inventory: Inventory) -> Iterator[tuple[str, tuple[str, ...]]]:
    for vm in inventory.vms.values():
        if vm.profiles:
            yield vm.ref, VM_COUNTERS
    for host in inventory.hosts.values():
        of_gpus = [f"{name}@{gpu.address}" for gpu in host.gpus for name in HOST_COUNTERS if name.startswith(OF_GPUS)]
        if host.gpus:
            yield host.ref, (*HOST_COUNTERS, *of_gpus)


def _block(names: tuple[str, ...], chance: np.random.Generator) -> Block:
    def values() -> NDArray[np.int64]:
        average = chance.integers(0, 10_000, STEPS)
        return np.stack([average, average, np.full(STEPS, 15)], axis=1).astype(np.int64)

    return Block(STEPS, {name: values() for name in names})
