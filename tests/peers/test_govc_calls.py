"""The whole verb list of govc that has sense for a vCenter, in the order of `govc_calls.tsv`, on the default clock.

`outcome` of a row says how the call ends, `text` what it prints then: `prints` = with success; `rule` = refused, as
vCenter refuses it; `not simulated` = refused with a text that says so; `not served` = it needs what is beside the
public SDK and not there: VSLM, vSAN health, key providers, internal methods, further commands of esxcli;
`client` = govc itself ends it, since what it looks for is not in this inventory, such as a datastore cluster. No call
may panic. All of it is asked over SOAP and over VI/JSON; `over_json.py` names the calls that end otherwise there.
"""

from __future__ import annotations

import csv
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.sim.server import SimServer, start
from tests.peers.over_json import CALLS, SIGNS
from tests.peers.processes import BINARIES, Endpoint, Govc

pytestmark = pytest.mark.peer

TABLE = Path(__file__).with_name("govc_calls.tsv")
FAILURES = ("rule", "not simulated", "not served", "client")


@pytest.fixture
def server() -> Iterator[SimServer]:
    with start("lab") as running:
        yield running


@pytest.mark.parametrize("over_json", [False, True], ids=["soap", "json"])
def test_every_call_ends_as_the_table_says(
    server: SimServer, govc: Callable[[Endpoint], Govc], tmp_path: Path, *, over_json: bool
) -> None:
    assert server.ca_file is not None
    endpoint = Endpoint(server.url, server.username, server.password, Path(server.ca_file))
    ask = replace(govc(endpoint), over_json=over_json)
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(rows) > 200
    problems = [(row["arguments"], problem) for row in rows if (problem := _problem(row, ask, tmp_path))]
    known_calls = {call for call, problem in problems if over_json and any(sign in problem for sign in _signs(call))}
    assert [problem for call, problem in problems if call not in known_calls] == []
    assert known_calls == (set(CALLS) if over_json else set())
    assert server.world.bugs == []


def _problem(row: dict[str, str], ask: Govc, directory: Path) -> str:
    """What is wrong with one call, or nothing."""
    completed = subprocess.run(
        [BINARIES / "govc", *shlex.split(row["arguments"])],
        env=ask.environment(),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    output = completed.stdout + completed.stderr
    failed = row["outcome"] in FAILURES
    right = bool(completed.returncode) == failed and row["text"] in output
    sound = "panic:" not in output and "general system error" not in output
    if right and sound and completed.returncode in (0, 1):
        return ""
    return f"{row['arguments']}: exit {completed.returncode}, not {row['outcome']} {row['text']!r}: {output!r}"


def _signs(call: str) -> tuple[str, ...]:
    """What govc prints where it cannot do over VI/JSON what it does over SOAP."""
    return SIGNS[CALLS[call]] if call in CALLS else ()


def test_the_table_explains_every_failure() -> None:
    rows = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]]
    assert {outcome for outcome, *_ in rows} <= {"prints", *FAILURES}
    assert [row for row in rows if row[0] in FAILURES and not row[1]] == []
    assert set(CALLS) <= {arguments for _, _, arguments in rows}
    assert [row for row in rows if row[0] == "not simulated" and "simulate" not in row[1]] == []
