"""Whatever a path leads to: one error that names the file, within 5 s of CPU and 256 MB, and never the process's end.

Each reader of a file meets them in a child process, for some once ended the process or took all its memory.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gpuops.config.policy import load_policy
from gpuops.config.requests_file import load_requests
from gpuops.config.role_file import load_roles
from gpuops.config.snapshot import load as load_snapshot
from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.login_settings import read_password_file
from gpuops.config.vcenter.sources import read_configuration, resolve
from gpuops.config.vcenter.targets import Configuration
from gpuops.console.failure import run_guarded
from gpuops.extensions import load
from gpuops.files import file
from gpuops.model.vcenter.target import Secret, Target
from gpuops.sim.outside_events import fault_file
from gpuops.sim.scenario import scenario_file
from gpuops.sim.scenario.build import build
from gpuops.sim.scenario.saved_state import StateFile
from gpuops.sim.wire import sim_client
from gpuops.vsphere.transport import network
from tests.sample import mostly_long

MIB = 1024 * 1024
CPU_S = 5
WALL_S = 60
"""For a read that waits; where other tests have the same cores the five seconds of CPU take long too."""
NESTED = 50_000

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "policy": ("x.yaml", load_policy),
    "jobs": ("x.yaml", lambda path: load("gpuops.extras.jobs.jobs_file.load_jobs")(path)),
    "requests": ("x.yaml", load_requests),
    "requests-csv": ("x.csv", load_requests),
    "roles": ("x.yaml", load_roles),
    "faults": ("x.yaml", fault_file.read),
    "scenario": ("x.yaml", lambda path: scenario_file.read(str(path))),
    "configuration": ("x.toml", read_configuration),
    "inventory": ("x.json", load_snapshot),
    "sim@": ("x.json", lambda path: resolve(Flags(vcenter=f"sim@{path}"), {}, Configuration())),
    "ready-file": ("x.json", sim_client.read),
    "state": ("x.json", lambda path: StateFile(path, build("lab"))),
    "password-file": ("x", read_password_file),
    "ca-file": ("x.pem", lambda path: network.tls_context(Target("vc", "me", Secret("x"), ca_files=(str(path),)))),
}
CONTENTS: dict[str, bytes] = {
    "nested lists": b"[" * NESTED + b"]" * NESTED,
    "open lists": b"[" * NESTED,
    "nested mappings": b'{"a":' * NESTED + b"1" + b"}" * NESTED,
    "nested in a key": b'{"kind": "snapshot", "schema_version": 1, "inventory": '
    + b"[" * NESTED
    + b"]" * NESTED
    + b"}",
    "nested in TOML": b"a = " + b"[" * NESTED + b"]" * NESTED,
    "block lists": b"- " * NESTED + b"1",
    "digits": b"9" * 500_000,
    "digits in a key": b'{"version": ' + b"9" * 500_000 + b"}",
    "400 digits in a key": b'{"version": 1' + b"0" * 400 + b', "pid": 1' + b"0" * 400 + b"}",
    "400 digits in TOML": b"default = 1" + b"0" * 5000,
    "a float": b'{"now": 1e999, "number": 1e999, "version": 1e999}',
    "NaN": b'{"version": NaN, "number": NaN}',
    "null": b"null",
    "a list": b"[]",
    "a number": b"5",
    "a text": b'"text"',
    "zeros": bytes(1000),
    "not UTF-8": b"name: \xe9\xff\xfe",
    "a ready file of other kinds": b'{"url": 5, "username": [], "password": {}, "ca_file": 7, "pid": -1}',
    "a ready file of all processes": b'{"url": "https://x", "username": "a", "password": "", "ca_file": "", "pid": -1}',
    "a state of nothing": b'{"format": 2, "scenario": "lab", "seed": 0}',
    "a state of other kinds": b'{"format": 2, "scenario": "lab", "seed": 0, "now": 5, "number": "x", "fields": 7}',
    "a snapshot of nothing": b'{"kind": "snapshot", "schema_version": 1, "inventory": {"hosts": [[]]}}',
    "a fault of a list": b"faults: [{fault: [1]}, {effect: [1]}, {fault: {a: b}}]",
    "merges of merges": b"a0: &a0 {x: 1, y: 2}\n"
    + b"".join(b"a%d: &a%d {<<: [*a%d, *a%d]}\n" % (n, n, n - 1, n - 1) for n in range(1, 48)),
    "commas": b"," * 200_000,
    "a cell": b'name\n"' + b"x" * 200_000 + b'"\n',
}
HARMLESS = {
    ("password-file", name) for name, content in CONTENTS.items() if len(content) < 65_536 and name != "not UTF-8"
} | {("sim@", "a ready file of all processes")}

COSTLY = ("nested lists", "open lists", "nested in a key", "digits", "digits in a key")
"""What the reader of YAML, which five of these share, looks at for a quarter of a second."""
TRIED_QUICKLY = {
    ("requests", "nested in a key"),
    ("roles", "digits in a key"),
    ("faults", "open lists"),
    ("scenario", "digits"),
}
"""Beside `policy`, which meets each of them."""


def is_quick(reader: str, content: str) -> bool:
    shares = READERS[reader][0] == "x.yaml" and reader != "policy"
    return not shares or content not in COSTLY or (reader, content) in TRIED_QUICKLY


Found = tuple[int, str]
"""Exit code of a read, -N for a signal, and what it said."""


def in_children(reads: Mapping[str, Callable[[], object]]) -> dict[str, Found]:
    """What became of each read: one child does them one after another, and another one goes on where it ended."""
    outcomes: dict[str, Found] = {}
    while remaining := {name: read for name, read in reads.items() if name not in outcomes}:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with suppress(BaseException):  # the child must not become a second pytest
                _read_all(remaining, writing)
            os._exit(99)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as output:
            outcomes |= {name: (code, text) for name, code, text in map(json.loads, output)}
        _, status = os.waitpid(child, 0)
        ended = next((name for name in remaining if name not in outcomes), None)
        if ended is not None:
            outcomes[ended] = (os.waitstatus_to_exitcode(status), "")
    return outcomes


def _read_all(reads: Mapping[str, Callable[[], object]], writing: int) -> None:
    """Ends the process at the latest after so many seconds of one read, and with one that takes too much memory."""
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 256 * MIB, size + 256 * MIB))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with os.fdopen(writing, "w", encoding="utf-8") as tell:
        for name, read in reads.items():
            most_s = int(sum(os.times()[:2])) + CPU_S + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most_s, resource.RLIM_INFINITY))
            signal.alarm(WALL_S)
            sys.stderr = io.StringIO()
            code = run_guarded(read)
            print(json.dumps([name, code, sys.stderr.getvalue()]), file=tell, flush=True)


def require_refused(case: str, outcome: Found, path: Path) -> None:
    code, text = outcome
    assert code in (2, 5, 7), (case, outcome)
    assert text.startswith("error: "), case
    assert path.name in text, case
    assert len(text) < 1000, case


@pytest.mark.long
@pytest.mark.parametrize("shared", mostly_long([False, True], [False]), ids=["", "what another reader meets too"])
@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_file_is_refused(tmp_path: Path, reader: str, shared: bool) -> None:
    name, read = READERS[reader]
    paths: dict[str, Path] = {}
    for number, content in enumerate(content for content in CONTENTS if is_quick(reader, content) is not shared):
        path = paths[content] = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_bytes(CONTENTS[content])
        path.chmod(0o600)
    outcomes = in_children({content: partial(read, path) for content, path in paths.items()})
    for content, path in paths.items():
        if (reader, content) not in HARMLESS:
            require_refused(content, outcomes[content], path)
        assert outcomes[content][0] != 1, (content, outcomes[content])


def socket(path: Path) -> None:
    import socket as sockets

    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(path))


PLANTS: dict[str, Callable[[Path], None]] = {
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a pipe without a writer": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "a socket": socket,
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(file, "PIPE_S", 0.1)
    name, read = READERS[reader]
    paths: dict[str, Path] = {}
    for number, (plant, make) in enumerate(PLANTS.items()):
        if reader == "state" and plant == "a link to itself":
            continue  # a state that is not there yet is made
        paths[plant] = tmp_path / str(number) / name
        paths[plant].parent.mkdir()
        make(paths[plant])
    outcomes = in_children({plant: partial(read, path) for plant, path in paths.items()})
    for plant, path in paths.items():
        require_refused(plant, outcomes[plant], path)


@pytest.mark.long
def test_a_read_that_ends_its_process_is_found_and_the_others_are_read() -> None:
    outcomes = in_children({
        "ends": partial(os._exit, 9),
        "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "grows": lambda: [bytearray(256 * MIB) for _ in range(16)],  # one may fit into what this process has freed
        "reads": partial(read_password_file, Path("/nowhere")),
    })  # fmt: skip
    assert [outcomes[name][0] for name in ("ends", "is killed", "reads")] == [9, -signal.SIGKILL, 2]
    assert outcomes["grows"][0] != 0


def test_a_pipe_that_somebody_writes_to_is_read() -> None:
    """As a shell has it: --password-file <(pass show vcenter)."""
    reading, writing = os.pipe()
    os.write(writing, b"secret\n")
    os.close(writing)
    try:
        assert read_password_file(Path(f"/dev/fd/{reading}")).reveal() == "secret"
    finally:
        os.close(reading)


def test_a_name_that_no_file_can_have() -> None:
    assert run_guarded(lambda: load_policy(Path("a\0b.yaml"))) == 2


@pytest.mark.long
def test_scenarios_of_gpuops_read_alike_as_files() -> None:
    from importlib import resources

    for name in scenario_file.names():
        text = resources.files("gpuops.sim").joinpath("scenarios", f"{name}.yaml").read_text(encoding="utf-8")
        assert scenario_file.parse(text, name) == scenario_file.read(name)[0]
