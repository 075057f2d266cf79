"""How many requests a run makes of vCenter: an attach, and a night of the scenario `lab` with its morning.

Counted where they arrive, in the simulated vCenter, from login to logout. Before one look was shared by the steps of a
wave, and VMs and their hosts came in one read, 10, 71 and 61 requests read anew.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from typing import Any, Final
from unittest.mock import patch

from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.sim.core.call import Call
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire.endpoint import Dispatcher
from gpuops.sim.wire.soap import SoapRequest
from tests.bench.measure import ROOT
from tests.bench.verdict import Figure, Result

POLICY: Final = str(ROOT / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml")
RUNS: Final[dict[str, tuple[tuple[str, ...], int, int]]] = {
    "attach a vGPU": (("attach", "--vm", "ml-07", "--profile", "a100-3-20c"), 19, 24),
    "rotate night": (("rotate", "night", "--policy", POLICY), 73, 119),
    "rotate day": (("rotate", "day", "--policy", POLICY), 53, 99),
}
"""The command of each run, its most requests, and how many it made at commit 4d55cac2."""
LOOKS: Final = ("RetrievePropertiesEx", "CurrentTime")


def run() -> Result:
    """Requests of each run: all of them, those that change something, and those that read anew."""
    figures: list[Figure] = []
    with SimServer(build("lab")) as server, tempfile.TemporaryDirectory() as folder:
        environment = {"GPUOPS_STATE_DIR": folder, "GPUOPS_PASSWORD": server.password}
        vcenter = ("--vcenter", f"{server.username}@127.0.0.1:{server.port}", "--ca-file", str(server.ca_file))
        with patch.dict(os.environ, environment):
            for name, (command, most, before) in RUNS.items():
                requests, changes = requests_of((*command, "--yes", *vcenter))
                figures += [
                    Figure(f"{name}: requests", requests.total(), "", most),
                    Figure(f"{name}: requests at commit 4d55cac2", before, ""),
                    Figure(f"{name}: changes", changes, ""),
                    Figure(
                        f"{name}: reads of properties or of the clock", sum(requests[method] for method in LOOKS), ""
                    ),
                ]
    return Result("requests of one run", tuple(figures))


def requests_of(command: tuple[str, ...]) -> tuple[Counter[str], int]:
    """Requests by method, and how many change something: they carry an operation id. Raises RuntimeError."""
    requests, changes, answer = Counter[str](), [0], Dispatcher._answer

    def count_request(self: Dispatcher, request: SoapRequest, call: Call) -> Any:
        requests[request.method] += 1
        changes[0] += bool(request.operation_id)
        return answer(self, request, call)

    with patch.object(Dispatcher, "_answer", count_request):
        completed = CliRunner().invoke(app, list(command))
    if completed.exit_code:
        raise RuntimeError(f"{' '.join(command[:2])}: {completed.output[-2000:]}")
    return requests, changes[0]
