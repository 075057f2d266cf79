"""What our simulator costs: its start with a whole fleet, and the server's CPU for a bulk read of it.

vcsim, which has no cache of what it has said before, is asked the same question in the same run, where it is built.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuops.sim.core.fragments import top_level
from tests.bench.measure import Contender, Usage, python
from tests.bench.readers.question import Question
from tests.bench.reads.bulk_read import LEAVES, Paths
from tests.bench.simulator.simulators import Served, our_simulator, unbuilt_peers, vcsim_fleet
from tests.bench.verdict import Figure, Result

START_BUDGET_S = 20.0
START_CPU_BUDGET_S = 2.0
CACHED_READ_BUDGET_S = 2.0
WHOLE_READ_BUDGET_S = 3.0
WHOLE = {"VirtualMachine": [*top_level("VirtualMachine", "vim.version.v8_0_3_0")]}
"""Every property of every VM, as `govc vm.info -json '*'` asks for."""
PAGE = 500
FIRST, AGAIN, VCSIM = "our simulator, first read", "our simulator, read again", "vcsim, 200 hosts, 2,000 VMs"


def run() -> Iterator[Result]:
    """Start and server CPU for 1,000 hosts and 10,000 VMs; vcsim's for a fifth of that."""
    with tempfile.TemporaryDirectory() as directory, our_simulator("fleet:hosts=1000,vms=10000") as served:
        reading, whole = _reading(served, Path(directory)), _reading(served, Path(directory), WHOLE)
        start_s, start_cpu_s = served.start_s, served.cpu_s()
        first_s, first = _server_cpu_s(served, reading)
        again_s, again = _server_cpu_s(served, reading)
        whole_s, _ = _server_cpu_s(served, whole)
        whole_again_s, _ = _server_cpu_s(served, whole)
    yield Result(
        "our simulator with 1,000 hosts and 10,000 VMs",
        (
            Figure("start, from process to listening", start_s, "s", START_BUDGET_S),
            Figure("CPU of the start", start_cpu_s, "CPU s", START_CPU_BUDGET_S),
            Figure("server CPU of the first bulk read", first_s, "CPU s"),
            Figure("server CPU of the bulk read, cached", again_s, "CPU s", CACHED_READ_BUDGET_S),
            Figure("server CPU of the first read of all properties of VMs", whole_s, "CPU s", WHOLE_READ_BUDGET_S),
            Figure("server CPU of the same, cached", whole_again_s, "CPU s"),
        ),
        {FIRST: [first], AGAIN: [again]},
    )
    if lacking := unbuilt_peers():
        yield Result(f"vcsim: not run, {lacking}", ())
        return
    with tempfile.TemporaryDirectory() as directory, vcsim_fleet(200, 2_000) as served:
        reading = _reading(served, Path(directory))
        _server_cpu_s(served, reading)  # whatever it may keep, it keeps now
        vcsim_s, usage = _server_cpu_s(served, reading)
    per_object, vcsim_per_object = again_s / again.said["objects"], vcsim_s / usage.said["objects"]
    yield Result(
        "vcsim with 200 hosts and 2,000 VMs",
        (
            Figure("vcsim's server CPU of the bulk read", vcsim_s, "CPU s"),
            Figure("server CPU per object: ours / vcsim", per_object / vcsim_per_object, "x"),
        ),
        {VCSIM: [usage]},
    )


def _reading(served: Served, directory: Path, paths: Paths = LEAVES) -> Contender:
    endpoint = served.endpoint
    login = (endpoint.url, endpoint.username, endpoint.password, str(endpoint.ca_file))
    question = Question(*login, paths=paths, page=PAGE).write(directory / f"{len(paths)}.json")
    return python("read and drop", "-m", "tests.bench.readers.drop", str(question))


def _server_cpu_s(served: Served, reading: Contender) -> tuple[float, Usage]:
    before = served.cpu_s()
    usage = reading.run()
    return served.cpu_s() - before, usage
