"""Whatever a path leads to: one error that names the file, within 5 s of CPU and 256 MB, and never the process's end.

Each reader of a file meets each of them in a child of its own, for some once ended the process or took all its memory.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from gpuops.cli.failure import guarded
from gpuops.config import file
from gpuops.config.layers import Flags
from gpuops.config.login import read_password_file
from gpuops.config.policy import load_policy
from gpuops.config.requests_file import load_requests
from gpuops.config.role_file import load_roles
from gpuops.config.snapshot import load
from gpuops.config.sources import resolve
from gpuops.config.targets import Configuration, read_configuration
from gpuops.model.target import Secret, Target
from gpuops.sim.outside_events import fault_file
from gpuops.sim.scenario import scenario_file
from gpuops.sim.scenario.build import build
from gpuops.sim.scenario.saved_state import StateFile
from gpuops.sim.wire import ready_file
from gpuops.vsphere.transport import network
from tests.sample import mostly_long

MIB = 1024 * 1024
CPU_S = 5
WALL_S = 20
NESTED = 50_000

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "policy": ("x.yaml", load_policy),
    "requests": ("x.yaml", load_requests),
    "requests-csv": ("x.csv", load_requests),
    "roles": ("x.yaml", load_roles),
    "faults": ("x.yaml", fault_file.read),
    "scenario": ("x.yaml", lambda path: scenario_file.read(str(path))),
    "configuration": ("x.toml", read_configuration),
    "inventory": ("x.json", load),
    "sim@": ("x.json", lambda path: resolve(Flags(vcenter=f"sim@{path}"), {}, Configuration())),
    "ready-file": ("x.json", ready_file.read),
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


def in_a_child(read: Callable[[], object]) -> tuple[int, str]:
    """Exit code of this read in a child with limits, -N for a signal, and what it said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writing, 2)
            sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
            size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + 256 * MIB, size + 256 * MIB))
            used_s = sum(os.times()[:2])
            resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + CPU_S + 1, int(used_s) + CPU_S + 1))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WALL_S)
            code = guarded(read)
            sys.stderr.flush()
        except BaseException:  # the child must not become a second pytest
            code = 99
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as told:
        said = told.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said


def require_refused(found: tuple[int, str], path: Path) -> None:
    code, said = found
    assert code in (2, 5, 7), found
    assert said.startswith("error: ")
    assert path.name in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("reader", "content"),
    mostly_long(product(READERS, CONTENTS), quick=[pair for pair in product(READERS, CONTENTS) if is_quick(*pair)]),
)
def test_a_hostile_file_is_refused(tmp_path: Path, reader: str, content: str) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    path.write_bytes(CONTENTS[content])
    path.chmod(0o600)
    found = in_a_child(lambda: read(path))
    if (reader, content) not in HARMLESS:
        require_refused(found, path)
    assert found[0] != 1, found


def socket(path: Path) -> None:
    import socket as sockets

    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(path))


PLANTS: dict[str, Callable[[Path], None]] = {
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a pipe that nobody writes to": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "a socket": socket,
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, plant: str) -> None:
    monkeypatch.setattr(file, "PIPE_S", 0.1)
    name, read = READERS[reader]
    path = tmp_path / name
    PLANTS[plant](path)
    if reader == "state" and plant == "a link to itself":
        pytest.skip("a state that is not there yet is made")
    require_refused(in_a_child(lambda: read(path)), path)


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
    assert guarded(lambda: load_policy(Path("a\0b.yaml"))) == 2


def test_scenarios_of_gpuops_read_alike_as_files() -> None:
    from importlib import resources

    for name in scenario_file.names():
        text = resources.files("gpuops.sim").joinpath("scenarios", f"{name}.yaml").read_text(encoding="utf-8")
        assert scenario_file.parse(text, name) == scenario_file.read(name)[0]
