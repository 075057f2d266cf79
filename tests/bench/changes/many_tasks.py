"""200 tasks at once: requests from the first call to the last end, by one filter over all tasks or one for each.

On a real network every request costs a round trip, so they are counted and the time is not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measure import interleave, python
from tests.bench.readers.question import Question
from tests.bench.simulator.simulators import our_simulator, unbuilt_peers, vcsim_fleet
from tests.bench.verdict import Figure, Result
from tests.peers.processes import Endpoint

TASKS = 200
# One call starts a task; the filter, its updates and its end are some ten more.
BUDGET_REQUESTS = TASKS + 20
GPUOPS, PYVMOMI = "gpuops, one filter", "pyvmomi WaitForTask, a filter each"
# vcsim's tasks are over before they are asked about unless they are told to take their time.
VCSIM_DELAYS = "-method-delay=PowerOff:500,LockHandoff:0"


def run() -> Iterator[Result]:
    """Our simulator beside pyvmomi's helper, and vcsim, which that helper cannot wait for."""
    with our_simulator("fleet:hosts=100,vms=1000") as served:
        yield _count("200 power-offs: our simulator", served.endpoint, beside_pyvmomi=True)
    if lacking := unbuilt_peers():
        yield Result(f"200 power-offs: vcsim: not run, {lacking}", ())
        return
    with vcsim_fleet(20, 400, VCSIM_DELAYS) as served:
        yield _count("200 power-offs: vcsim", served.endpoint, beside_pyvmomi=False)


def _count(title: str, endpoint: Endpoint, *, beside_pyvmomi: bool) -> Result:
    with tempfile.TemporaryDirectory() as directory:
        login = (endpoint.url, endpoint.username, endpoint.password, str(endpoint.ca_file))
        question = str(Question(*login, paths={}, page=TASKS).write(Path(directory) / "question.json"))
        contenders = [python(GPUOPS, "-m", "tests.bench.doers.gpuops", question, str(TASKS))]
        if beside_pyvmomi:
            contenders.append(python(PYVMOMI, "-m", "tests.bench.doers.pyvmomi", question, str(TASKS)))
        rounds = interleave(contenders, rounds=1)
    said = rounds[GPUOPS][0].said
    figures = [
        Figure(f"requests for {TASKS} tasks", float(said["requests"]), "requests", BUDGET_REQUESTS),
        Figure("tasks that did not end well", float(TASKS - said["objects"]), "tasks", 0),
    ]
    if beside_pyvmomi:
        peer = float(rounds[PYVMOMI][0].said["requests"])
        figures.append(Figure("requests: gpuops / pyvmomi WaitForTask", said["requests"] / peer, "x"))
    return Result(title, tuple(figures), rounds)
