"""What our simulator costs: its start with a whole fleet, and the server's CPU for a bulk read of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpuops.sim.core.fragments import top_level
from tests.bench.measure import Contender, Usage, python
from tests.bench.readers.question import Question
from tests.bench.reads.wires import LEAVES, Paths
from tests.bench.simulator.simulators import Served, our_simulator
from tests.bench.verdict import Figure, Result

START_BUDGET_S = 20.0
START_CPU_BUDGET_S = 2.0
CACHED_READ_BUDGET_S = 2.0
WHOLE_READ_BUDGET_S = 3.0
WHOLE = {"VirtualMachine": [*top_level("VirtualMachine", "vim.version.v8_0_3_0")]}
"""Every property of every VM, as `govc vm.info -json '*'` asks for."""
PAGE = 500
FIRST, AGAIN = "our simulator, first read", "our simulator, read again"


def run() -> Result:
    """Start and server CPU for 1,000 hosts and 10,000 VMs."""
    with tempfile.TemporaryDirectory() as directory, our_simulator("fleet:hosts=1000,vms=10000") as served:
        reading, whole = _reading(served, Path(directory)), _reading(served, Path(directory), WHOLE)
        start_s, start_cpu_s = served.start_s, served.cpu_s()
        first_s, first = _server_cpu_s(served, reading)
        again_s, second = _server_cpu_s(served, reading)
        whole_s, _ = _server_cpu_s(served, whole)
        whole_again_s, _ = _server_cpu_s(served, whole)
    return Result(
        "our simulator with 1,000 hosts and 10,000 VMs",
        (
            Figure("start, from process to listening", start_s, "s", START_BUDGET_S),
            Figure("CPU of the start", start_cpu_s, "CPU s", START_CPU_BUDGET_S),
            Figure("server CPU of the first bulk read", first_s, "CPU s"),
            Figure("server CPU of the bulk read, cached", again_s, "CPU s", CACHED_READ_BUDGET_S),
            Figure("server CPU of the first read of all properties of VMs", whole_s, "CPU s", WHOLE_READ_BUDGET_S),
            Figure("server CPU of the same, cached", whole_again_s, "CPU s"),
        ),
        {FIRST: [first], AGAIN: [second]},
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
