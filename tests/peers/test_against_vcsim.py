"""Every operation of the table comes to what `vcsim_table/outcomes.tsv` says, on our simulator and on vcsim.

vcsim is third-party: where the two agree, our reading of the API is confirmed independently. Both have the same
inventory without GPUs, and the same pyvmomi client does the same to it. The verdict of a row: `same`; `stricter` = ours
refuses or answers what the named document says, and vcsim takes anything; `vcsim wrong` = the named document says
otherwise; `not simulated` = ours answers NotSupported, and the manual does not name the method among the simulated, or
names what `why` says as not simulated.
`--refresh-golden` writes anew what is seen; a row that is new or has changed then has the verdict `?`.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest
from pyVmomi import VmomiSupport, vmodl

import gpuops
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.server import SimServer

from .conftest import _endpoint
from .processes import running_vcsim
from .vcsim_table.site import FLAGS, like_vcsim
from .vcsim_table.table import OPERATIONS, Served, play_operations, recorded_rows, write

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

VERDICTS: Final = ("same", "stricter", "vcsim wrong", "not simulated")
NOT_SIMULATED: Final = re.compile(r"(call|task): NotSupported(;|$)")
DECLARED: Final = re.compile(r"vSphere API, (?P<method>\w+): (?P<fault>[A-Z]\w+)\b")
ROWS: Final = 200
TASK_S: Final = 10.0
POLL_S: Final = 0.002
MANUAL: Final = Path(gpuops.__file__).parent / "sim" / "SIMULATED.md"


@contextmanager
def our_server() -> Iterator[Served]:
    with SimServer(build_declared(like_vcsim())) as server:

        def wait() -> None:
            with server.world.lock:
                server.world.clock.advance(TASK_S)

        yield _endpoint(server), wait
        assert server.world.bugs == []


@contextmanager
def vcsim_server() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder, running_vcsim(Path(folder), *FLAGS) as endpoint:
        yield endpoint, partial(time.sleep, POLL_S)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # pyvmomi drops connections that a server has ended
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_operation_comes_to_what_the_table_says(govc: object, request: pytest.FixtureRequest) -> None:
    ours, vcsim = play_operations(our_server), play_operations(vcsim_server)
    if request.config.getoption("--refresh-golden"):
        write(ours, vcsim)
    rows = recorded_rows()
    assert [row.operation for row in rows] == list(ours)
    changed = [
        f"{row.operation}: ours {ours[row.operation]} (was {row.ours}), vcsim {vcsim[row.operation]} (was {row.vcsim})"
        for row in rows
        if (row.ours, row.vcsim) != (ours[row.operation], vcsim[row.operation])
    ]
    assert changed == []


def test_every_difference_is_explained() -> None:
    rows = recorded_rows()
    assert len(rows) == len({operation.name for operation in OPERATIONS}) >= ROWS
    assert [row.operation for row in rows if row.verdict not in VERDICTS] == []
    assert [row.operation for row in rows if (row.ours == row.vcsim) != (row.verdict == "same")] == []
    assert [row.operation for row in rows if row.verdict == "same" and row.why] == []
    cited = [row for row in rows if row.verdict in ("stricter", "vcsim wrong")]
    assert [row.operation for row in cited if "vSphere" not in row.why] == []
    assert [row.operation for row in rows if "client:" in row.ours or "the server ends" in row.ours] == []


def test_what_is_not_simulated_says_so_and_is_not_in_the_manual() -> None:
    rows = [row for row in recorded_rows() if row.verdict == "not simulated"]
    assert [row.operation for row in rows if not NOT_SIMULATED.match(row.ours)] == []
    simulated, manual = simulated_methods(), MANUAL.read_text(encoding="utf-8")
    for row in rows:
        kind, method = row.operation.partition(":")[0].split(".")
        if row.why:  # a part of a method that is simulated
            assert f"| NotSupported | {row.why} | not simulated |" in manual, row.operation
        else:
            assert method not in simulated.get(kind, ()), row.operation


def test_the_faults_that_a_row_names_are_those_that_the_api_declares() -> None:
    declared_faults = [(row, match) for row in recorded_rows() for match in DECLARED.finditer(row.why)]
    assert declared_faults
    assert [row.operation for row, match in declared_faults if not declares(match["method"], match["fault"])] == []


@cache
def simulated_methods() -> dict[str, set[str]]:
    """By type: the methods that the manual names as simulated."""
    rows = re.findall(r"^\| (\w+) \| ([\w, ]+) \| \d* \|$", MANUAL.read_text(encoding="utf-8"), re.MULTILINE)
    return {kind: set(methods.split(", ")) for kind, methods in rows}


def declares(method: str, fault: str) -> bool:
    """Whether the type tables of pyVmomi have this fault, or what it is a kind of, for the method."""
    raised: Any = VmomiSupport.GetWsdlType("urn:vim25", fault)
    if issubclass(raised, vmodl.RuntimeFault):
        return True
    faults = VmomiSupport.GetWsdlMethod("urn:vim25", method).info.faults or ()
    return any(issubclass(raised, VmomiSupport.GetVmodlType(fault)) for fault in faults)
