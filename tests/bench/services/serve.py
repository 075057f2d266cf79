"""What `gpuops serve` costs on 500 hosts with 5,000 VMs and 20 watchers, and how soon a change is with all of them.

The service is the product's: its reader, its documents, its web server, in this process with the watchers, whose own
work is counted too. vCenter is our simulator in a process of its own, over SOAP and TLS, whose waits take real time.
Nothing changes: waits of 15 s for changes at vCenter, what a watcher is told again every 15 s, and a read every five
minutes that finds the same. Then a VM is stopped, and each watcher fetches page and document, as a browser does.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter, process_time
from typing import Final

import httpx

from gpuops.clock import wall_clock
from gpuops.execute.site import Site
from gpuops.extras.web.http.access import Access
from gpuops.extras.web.http.following import LONGEST_S, SLICE_S, Following
from gpuops.extras.web.http.server import WebServer, serving
from gpuops.extras.web.serve_reads import ServedFleet, ServedMetrics
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import PowerOffVm
from gpuops.vsphere.connection import Connection
from tests.bench.nights.watch import FLEET, target_at
from tests.bench.simulator.simulators import our_simulator
from tests.bench.verdict import Figure, Result
from tests.waiting import wait_until
from tests.web.conftest import events

WATCHERS: Final = 20
OF_A_CORE: Final = 5.0
SLICES: Final = 3
READS: Final = 3


def run() -> Result:
    """One service and its watchers."""
    with (
        our_simulator(FLEET, "--clock", "real") as served,
        Connection(target_at(served.endpoint)) as connection,
        tempfile.TemporaryDirectory() as folder,
        Site(connection, Path(folder), wall_clock) as site,
        _server(site) as (server, fleet, url),
    ):
        following = Following(lambda: fleet, server.tell, print)
        assert following.look()
        watchers = [Watcher(url) for _ in range(WATCHERS)]
        for watcher in watchers:
            watcher.wait_for("1")
        reads = []
        for _ in range(READS):
            began = process_time()
            assert following.look()
            reads.append(process_time() - began)
        began, began_s = process_time(), perf_counter()
        for _ in range(SLICES):
            assert not fleet.wait_for_change(SLICE_S)
        quiet = (process_time() - began) / (perf_counter() - began_s)
        inventory = site.vcenter.inventory()
        running = next(vm.ref for vm in inventory.vms.values() if vm.power is PowerState.ON and vm.profiles)
        task = connection.submit(PowerOffVm(running), inventory, "somebody")
        assert task is not None and all(end.error is None for end in connection.wait([task], 60.0))
        began, began_s = process_time(), perf_counter()
        assert fleet.wait_for_change(SLICE_S)
        assert following.look()
        for watcher in watchers:
            watcher.wait_for("2")
        changed_s, changed_cpu_s = perf_counter() - began_s, process_time() - began
        size = watchers[0].fetched / 1e6
    return Result(
        f"serve: 500 hosts, 5,000 VMs, {WATCHERS} watchers",
        (
            Figure("nothing changes: waits and watchers, of a core", 100 * quiet, "%"),
            Figure("a read that finds the same", median(reads), "CPU s"),
            Figure("nothing changes: of a core", 100 * (quiet + median(reads) / LONGEST_S), "%", OF_A_CORE),
            Figure("page and document", size, "MB"),
            Figure("a VM is stopped: every watcher has the new page after", changed_s, "s"),
            Figure("its CPU, watchers too", changed_cpu_s, "CPU s"),
        ),
    )


class Watcher:
    """An open page: told of editions, of each new one it fetches page and document."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._has = ""
        self.fetched = 0
        Thread(target=self._watch, daemon=True).start()

    def wait_for(self, edition: str) -> None:
        """Returns when it has that edition."""
        wait_until(lambda: self._has == edition, 120, every_s=0.01)

    def _watch(self) -> None:
        with httpx.Client(base_url=self._url, timeout=120.0) as client, client.stream("GET", "/events") as response:
            for told in events(response):
                if told["edition"] != self._has:
                    found = [client.get(address) for address in ("/api/report", "/")]
                    assert all(each.status_code == 200 for each in found)
                    self.fetched = sum(len(each.content) for each in found)
                    self._has = found[0].headers["X-Gpuops-Edition"]


@contextmanager
def _server(site: Site) -> Iterator[tuple[WebServer, ServedFleet, str]]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        metrics = ServedMetrics("bench")
        fleet = metrics.fleet(ServedFleet(site, None, None, OwnerKey()))
        server = stack.enter_context(serving(listener, Access(), metrics.text, print))
        yield server, fleet, f"http://127.0.0.1:{listener.getsockname()[1]}"
