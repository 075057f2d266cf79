"""How far a reader walks from a command to its first change: files, functions, and calls inside each other.

Counted in a process of its own from the start of the command until its first changing request reaches vCenter's stub.
Functions that run while a module is imported, and those of other packages, are not counted.

python -m tests.bench.changes.walk ARGUMENT...    one command, as `gpuops ARGUMENT...`; prints the three figures
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
from types import CodeType, FrameType
from typing import Any, Final
from unittest.mock import patch

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.bench.changes.requests_per_run import POLICY
from tests.bench.measure import ROOT
from tests.bench.verdict import Figure, Result

Counts = tuple[int, int, int]
RUNS: Final[dict[str, tuple[tuple[str, ...], Counts, Counts]]] = {
    "attach a vGPU": (("attach", "--vm", "ml-07", "--profile", "a100-3-20c"), (100, 800, 16), (143, 1_099, 25)),
    "rotate night": (("rotate", "night", "--policy", POLICY), (130, 1_100, 20), (181, 1_457, 33)),
}
"""The command of each run, its most files, functions and open calls, and how many there were in early November 2026."""
FIGURES: Final = ("files", "functions", "depth of calls")
PACKAGE: Final = str(ROOT / "gpuops") + os.sep


class Walk:
    """Notes every function of gpuops that the main thread enters."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self._importing = 0

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take an event of `sys.setprofile`."""
        code = frame.f_code
        if code.co_name == "<module>":
            self._importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._importing and is_function(code):
            self.functions.add(code)

    def figures(self) -> tuple[int, int, int]:
        """Return the number of files and of functions until now, and how many calls are open here."""
        depth, frame = 0, inspect.currentframe()
        while frame := frame and frame.f_back:
            depth += is_function(frame.f_code)
        return len({code.co_filename for code in self.functions}), len(self.functions), depth


def is_function(code: CodeType) -> bool:
    """Return whether this is a function with a name in gpuops, and not the body of a class or a comprehension."""
    return (
        code.co_filename.startswith(PACKAGE)
        and bool(code.co_flags & inspect.CO_OPTIMIZED)
        and not code.co_name.startswith("<")
    )


def main(arguments: list[str]) -> None:
    """Run the command until its first change, and print the figures."""
    from pyVmomi import VmomiSupport

    from gpuops.cli.app import app
    from gpuops.vsphere.transport.stub import Stub

    walk, invoke = Walk(), Stub.InvokeMethod

    def count_call(self: Stub, *call: Any) -> Any:
        if "operationID" in VmomiSupport.GetRequestContext():
            sys.setprofile(None)
            print("", " ".join(map(str, walk.figures())), sep="\n")
            sys.stdout.flush()
            os._exit(0)
        return invoke(self, *call)

    with patch.object(Stub, "InvokeMethod", count_call):
        sys.setprofile(walk.note)
        app(arguments, prog_name="gpuops")


def run() -> Result:
    """The figures of an attach and of a night on the scenario `lab`."""
    figures: list[Figure] = []
    with SimServer(build("lab")) as server, tempfile.TemporaryDirectory() as folder:
        vcenter = ("--vcenter", f"{server.username}@127.0.0.1:{server.port}", "--ca-file", str(server.ca_file))
        environ = os.environ | {"GPUOPS_STATE_DIR": folder, "GPUOPS_PASSWORD": server.password}
        for name, (command, most, before) in RUNS.items():
            process = [sys.executable, "-m", "tests.bench.changes.walk", *command, "--yes", *vcenter]
            printed = subprocess.run(process, env=environ, cwd=ROOT, check=True, capture_output=True, text=True).stdout
            counts = map(int, printed.splitlines()[-1].split())
            for figure_name, count, budget, once in zip(FIGURES, counts, most, before, strict=True):
                figures += [
                    Figure(f"{name}: {figure_name}", count, "", budget),
                    Figure(f"{name}: {figure_name} before", once, ""),
                ]
    return Result("the walk to the first change", tuple(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
