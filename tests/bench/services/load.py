"""The services at the size of a large site: CPU, memory and latency, each with a bound.

`python -m tests.bench services` measures 10,000 VMs, 200 watchers, 50 clients, 1,000,000 records and 30 days of 5,000
VMs, which takes a quarter of an hour or more. `python -m tests.bench.services.load --vms 200 --watchers 8 ...` takes
other sizes; the bounds are those of the full ones. What is measured is a process of its own: `gpuops serve`, the
simulated vCenter, and a child for each store, whose figures hold nothing of what wrote it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from statistics import median
from threading import Thread
from time import perf_counter, sleep
from typing import Final

import httpx
from rich.console import Console

from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import PowerOffVm
from gpuops.vsphere.connection import Connection
from tests.bench.measure import peak_memory_mib
from tests.bench.nights.watch import target_at
from tests.bench.services.large_stores import large_journal, large_store
from tests.bench.simulator.simulators import Served, our_simulator
from tests.bench.verdict import Figure, Result, show
from tests.ports import free_port
from tests.waiting import wait_until
from tests.web.conftest import events

POLL_S: Final = 2.0
"""How often a watcher looks that the service has no room for."""
ANSWERS_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    vms: int = 10_000
    watchers: int = 200
    clients: int = 50
    client_vms: int = 500
    records: int = 1_000_000
    days: int = 30
    measured_vms: int = 5_000


def run(sizes: Sizes | None = None) -> Iterator[Result]:
    """Each part after the other; None = the full sizes."""
    sizes = sizes or Sizes()
    yield _serve(sizes)
    yield _simulator(sizes)
    yield large_journal(sizes.records)
    yield large_store(sizes.days, sizes.measured_vms)


def _serve(sizes: Sizes) -> Result:
    fleet = f"fleet:hosts={max(20, sizes.vms // 10)},vms={sizes.vms}"
    with our_simulator(fleet, "--clock", "real") as served, _service(served) as (service, url):
        began_s = perf_counter()
        watchers = [Watcher(url) for _ in range(sizes.watchers)]
        first = max(watcher.wait_for("1") for watcher in watchers) - began_s
        with Connection(target_at(served.endpoint)) as connection:
            inventory = connection.inventory()
            running = next(vm.ref for vm in inventory.vms.values() if vm.power is PowerState.ON and vm.profiles)
            before_s, began_s = service.cpu_s(), perf_counter()
            task = connection.submit(PowerOffVm(running), inventory, "somebody")
            assert task is not None and all(end.error is None for end in connection.wait([task], 60.0))
        changed_s = max(watcher.wait_for("2") for watcher in watchers) - began_s
        cpu_s, memory = service.cpu_s() - before_s, peak_memory_mib(service.endpoint.pid)
    return Result(
        f"serve: {sizes.vms:,} VMs, {sizes.watchers} watchers",
        (
            Figure("every watcher has the first page after", first, "s", 90.0),
            Figure("a VM is stopped: every watcher has the new page after", changed_s, "s", 45.0),
            Figure("CPU for that", cpu_s, "CPU s", 30.0),
            Figure("memory of the service", memory, "MiB", 600.0),
        ),
    )


def _simulator(sizes: Sizes) -> Result:
    fleet = f"fleet:hosts={max(20, sizes.client_vms // 10)},vms={sizes.client_vms}"
    with our_simulator(fleet) as served, ThreadPoolExecutor(sizes.clients) as pool:

        def read(_: int) -> float:
            with Connection(target_at(served.endpoint)) as connection:
                began_s = perf_counter()
                assert len(connection.inventory().vms) == sizes.client_vms
                return perf_counter() - began_s

        before_s = served.cpu_s()
        took_s = list(pool.map(read, range(sizes.clients)))
        cpu_s, memory = served.cpu_s() - before_s, peak_memory_mib(served.endpoint.pid)
    return Result(
        f"the simulator: {sizes.clients} clients that read {sizes.client_vms} VMs at once",
        (
            Figure("a read, median, clients in one process", median(took_s), "s", 60.0),
            Figure("a read, the longest", max(took_s), "s", 90.0),
            Figure("CPU of a read", cpu_s / sizes.clients, "CPU s", 0.5),
            Figure("memory of the simulator", memory, "MiB", 400.0),
        ),
    )


class Watcher:
    """An open page: it is told of editions, or asks every two seconds where there is no room for one more watcher."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._has, self._since_s = "", 0.0
        Thread(target=self._watch, daemon=True).start()

    def wait_for(self, edition: str) -> float:
        """Return the moment since which it has that edition or a later one."""
        wait_until(lambda: self._has and int(self._has) >= int(edition), ANSWERS_S, every_s=0.01)
        return self._since_s

    def _watch(self) -> None:
        with httpx.Client(base_url=self._url, timeout=ANSWERS_S) as client:
            while True:
                with suppress(httpx.HTTPError):  # it does not listen yet, or has no room
                    with client.stream("GET", "/events") as response:
                        if response.status_code == 200:
                            for told in events(response):
                                self._fetch(client, told["edition"])
                    self._fetch(client, "")
                sleep(POLL_S)

    def _fetch(self, client: httpx.Client, edition: str) -> None:
        if edition and edition == self._has:
            return
        found = [client.get(address) for address in ("/api/report", "/")]
        if all(each.status_code == 200 for each in found) and found[0].headers["X-Gpuops-Edition"] != self._has:
            self._since_s = perf_counter()
            self._has = found[0].headers["X-Gpuops-Edition"]


@contextmanager
def _service(served: Served) -> Iterator[tuple[Served, str]]:
    """`gpuops serve` in a process of its own, and its address."""
    port = free_port()
    at = served.endpoint
    with tempfile.TemporaryDirectory() as state:
        environ = os.environ | {
            "GPUOPS_VCENTER": at.url.removesuffix("/sdk"), "GPUOPS_USERNAME": at.username, "GPUOPS_STATE_DIR": state,
            "GPUOPS_PASSWORD": at.password, "GPUOPS_CA_FILE": str(at.ca_file),
        }  # fmt: skip
        words = [sys.executable, "-m", "gpuops", "serve", "--listen", f"127.0.0.1:{port}"]
        with subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                yield Served(replace(at, pid=process.pid), 0.0), f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def main() -> int:
    """Measure at other sizes; 1 when a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.services.load")
    for field in fields(Sizes):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    results = []
    for result in run(Sizes(**vars(parser.parse_args()))):
        show(Console(), result)
        results.append(result)
    return int(any(result.broken for result in results))


if __name__ == "__main__":
    sys.exit(main())
