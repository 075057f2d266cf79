"""A run that receives a signal: its steps are in the journal, and no session stays behind in vCenter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.sim.server import start
from gpuops.sim.wire import sim_client
from tests.sample import mostly_long

BY_TIMEOUT = ([signal.SIGTERM, signal.SIGTERM, signal.SIGTERM], 143, "")
"""`timeout` signals the process, then its group."""
BY_A_LOST_TERMINAL = ([signal.SIGHUP], 129, "")
BY_CTRL_C = ([signal.SIGINT], 130, "interrupted\n")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("numbers", "exit_code", "message"),
    mostly_long([BY_TIMEOUT, BY_A_LOST_TERMINAL, BY_CTRL_C], quick=[BY_TIMEOUT, BY_A_LOST_TERMINAL]),
)
def test_stopped_while_a_task_runs(
    tmp_path: Path, clean: Path, numbers: list[signal.Signals], exit_code: int, message: str
) -> None:
    words = ["attach", "--vm", "bare", "--profile", "a100-3-20c", "--power", "cycle", "--yes"]
    with start("lab", clock="real") as server:
        sim_client.write(tmp_path / "ready.json", sim_client.of(server))
        command = [sys.executable, "-m", "gpuops", *words, "--vcenter", f"sim@{tmp_path / 'ready.json'}"]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ
        ) as run:
            try:
                with server.world.changed:
                    assert server.world.changed.wait_for(server.world.tasks.unfinished, timeout=60)
                for number in numbers:
                    run.send_signal(number)
                output, errors = run.communicate(timeout=60)
            finally:
                run.kill()
        assert (run.returncode, output) == (exit_code, "")
        assert "interrupted after 0 of" in errors
        assert errors.endswith(message)
        assert "Traceback" not in errors
        assert list(server.world.sessions) == []


STOPPED_WHILE_CLOSING = """
import os, signal, sys
from sqlalchemy.engine.default import DefaultDialect
close, number = DefaultDialect.do_close, getattr(signal, sys.argv.pop())
def stopped(dialect, connection):
    DefaultDialect.do_close = close
    os.kill(os.getpid(), number)
    close(dialect, connection)
DefaultDialect.do_close = stopped
from gpuops.cli.app import main
main()
"""


@pytest.mark.long
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("name", "exit_code", "message"),
    mostly_long([("SIGTERM", 143, ""), ("SIGINT", 130, "interrupted")], quick=[("SIGINT", 130, "interrupted")]),
)
def test_stopped_while_the_journal_closes(tmp_path: Path, clean: Path, name: str, exit_code: int, message: str) -> None:
    words = ["attach", "--vm", "bare", "--profile", "a100-3-20c", "--power", "cycle", "--yes", "--vcenter"]
    with start("lab", clock="stepped") as server:
        sim_client.write(tmp_path / "ready.json", sim_client.of(server))
        run = subprocess.run(
            [sys.executable, "-c", STOPPED_WHILE_CLOSING, *words, f"sim@{tmp_path / 'ready.json'}", name],
            capture_output=True, encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip
    assert run.returncode == exit_code, run.stderr
    assert "Traceback" not in run.stderr
    assert message in run.stderr


@pytest.mark.long
def test_kill_nine_leaves_one_session_at_most(tmp_path: Path, clean: Path) -> None:
    """vCenter ends that one when it idles; nothing else of it is left, the cookie least of all."""
    words = ["attach", "--vm", "bare", "--profile", "a100-3-20c", "--power", "cycle", "--yes"]
    with start("lab", clock="real") as server:
        sim_client.write(tmp_path / "ready.json", sim_client.of(server))
        command = [sys.executable, "-m", "gpuops", *words, "--vcenter", f"sim@{tmp_path / 'ready.json'}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as run:
            with server.world.changed:
                assert server.world.changed.wait_for(server.world.tasks.unfinished, timeout=60)
            run.kill()
            output, errors = run.communicate(timeout=60)
        sessions = list(server.world.sessions)
        assert len(sessions) <= 1
        stored_bytes = b"".join(path.read_bytes() for path in clean.rglob("*") if path.is_file())
        for session in sessions:
            assert session.cookie.encode() not in output + errors + stored_bytes


@pytest.mark.long
def test_a_change_of_hosts_that_is_stopped_says_how_to_go_on(tmp_path: Path, clean: Path) -> None:
    words = [
        "host",
        "scheduler",
        "set",
        "--scheduler",
        "equal-share",
        "--host",
        "esx-04*",
        "--reboot",
        "rolling",
        "--yes",
    ]
    with start("scattered", clock="real") as server:
        where = tmp_path / "ready.json"
        sim_client.write(where, sim_client.of(server))
        command = [sys.executable, "-m", "gpuops", *words, "--vcenter", f"sim@{where}"]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ
        ) as run:
            try:
                with server.world.changed:
                    assert server.world.changed.wait_for(server.world.tasks.unfinished, timeout=60)
                run.send_signal(signal.SIGTERM)
                output, errors = run.communicate(timeout=60)
            finally:
                run.kill()
        assert (run.returncode, output) == (143, "")
        assert errors.splitlines()[-1] == "next: gpuops change resume"
        status = CliRunner().invoke(app, ["change", "status", "--vcenter", f"sim@{where}"])
        assert status.exit_code == 0, status.output
        assert "under way esx-04.scattered  not back: cad-04" in status.stdout
        assert "scheduler set, begun " in status.stdout
        assert list(server.world.sessions) == []


STOPPED_WHILE_A_TYPE_IS_MADE = """
import os, signal, sys
from pyVmomi import VmomiSupport
make, number = VmomiSupport._SetWsdlMethod, getattr(signal, sys.argv.pop())
def stopped(namespace, name, method):
    made = make(namespace, name, method)
    if name == "CertMgrRefreshCACertificatesAndCRLs_Task":
        os.kill(os.getpid(), number)
    return made
VmomiSupport._SetWsdlMethod = stopped
"""
STOPPED_WHILE_IT_IS_IMPORTED = """
import os, signal, sys
number = getattr(signal, sys.argv.pop())
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pyVmomi._typeinfo_core":
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder())
"""
AND_NEEDED_AGAIN = """
from gpuops.cli.app import main
try:
    main()
finally:
    from pyVmomi import vim
    assert vim.CertificateManager
"""


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("while_", "name", "exit_code", "message"),
    [
        pytest.param(STOPPED_WHILE_A_TYPE_IS_MADE, "SIGTERM", 143, "", id="type"),
        pytest.param(STOPPED_WHILE_IT_IS_IMPORTED, "SIGINT", 130, "interrupted\n", id="import"),
        pytest.param(
            STOPPED_WHILE_A_TYPE_IS_MADE, "SIGINT", 130, "interrupted\n", id="type too", marks=pytest.mark.long
        ),
        pytest.param(STOPPED_WHILE_IT_IS_IMPORTED, "SIGTERM", 143, "", id="import too", marks=pytest.mark.long),
    ],
)
def test_stopped_in_the_middle_of_pyvmomi(
    tmp_path: Path, clean: Path, while_: str, name: str, exit_code: int, message: str
) -> None:
    """What was left half way cannot be done again, and what is closed then may need it."""
    words = ["attach", "--vm", "bare", "--profile", "a100-3-20c", "--power", "cycle", "--yes", "--vcenter"]
    with start("lab", clock="stepped") as server:
        sim_client.write(tmp_path / "ready.json", sim_client.of(server))
        run = subprocess.run(
            [sys.executable, "-c", while_ + AND_NEEDED_AGAIN, *words, f"sim@{tmp_path / 'ready.json'}", name],
            capture_output=True, encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip
        assert list(server.world.sessions) == []
    assert (run.returncode, run.stdout) == (exit_code, ""), run.stderr
    assert run.stderr.endswith(message)
    assert "Traceback" not in run.stderr


STOPPED_WHILE_A_SCHEMA_IS_BUILT = """
import enum, os, signal, sys
get, number = enum.property.__get__, getattr(signal, sys.argv.pop())
def stopped(descriptor, member, owner=None):
    if sys._getframe(1).f_code.co_name == "create_schema_validator":  # from pydantic's Rust code
        enum.property.__get__ = get
        os.kill(os.getpid(), number)
    return get(descriptor, member, owner)
from pydantic import TypeAdapter
from gpuops.config import snapshot
from gpuops.model.vcenter.vm import PowerState
load = snapshot.load
def load_after_schema(path):  # typer has pydantic build schemas of options
    enum.property.__get__ = stopped
    TypeAdapter(PowerState)
    return load(path)
snapshot.load = load_after_schema
from gpuops.cli.app import main
main()
"""


@pytest.mark.quick_cases(1)
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("name", "exit_code", "message"),
    [("SIGTERM", 143, ""), ("SIGHUP", 129, ""), ("SIGINT", 130, "interrupted\n")],
)
def test_stopped_while_pydantic_builds_a_schema(clean: Path, name: str, exit_code: int, message: str) -> None:
    words, program = ["--inventory", str(clean / "saved.json")], [sys.executable, "-m", "gpuops"]
    subprocess.run([*program, "inventory", "--vcenter", "sim:lab", "--save", words[1]], check=True, timeout=60)
    run = subprocess.run(
        [sys.executable, "-c", STOPPED_WHILE_A_SCHEMA_IS_BUILT, "capacity", *words, name],
        capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (exit_code, "", message)


WHILE_AN_OBJECT_IS_FREED = """
class Freed:
    def __del__(self):
        os.kill(os.getpid(), number)
        [None for _ in range(1000)]
def work():
    Freed()
"""
WHILE_PYVMOMI_CATCHES_EVERYTHING = """
def work():
    until = time.monotonic() + 0.1
    os.kill(os.getpid(), number)
    while time.monotonic() < until:
        try:
            [None for _ in range(1000)]
        except:  # as in `ManagedObject.__init__`
            pass
work = types.FunctionType(work.__code__, globals() | {"__name__": "pyVmomi.VmomiSupport"})
"""


@pytest.mark.quick_cases(1)
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("work", [WHILE_AN_OBJECT_IS_FREED, WHILE_PYVMOMI_CATCHES_EVERYTHING])
@pytest.mark.parametrize(("name", "exit_code", "message"), [("SIGTERM", 143, ""), ("SIGINT", 130, "interrupted\n")])
def test_stopped_where_python_drops_exceptions(work: str, name: str, exit_code: int, message: str) -> None:
    program = f"""
import os, signal, sys, time, types
from gpuops.cli import app
from gpuops.console.failure import run_guarded
number = signal.{name}
{work}
app.app = lambda prog_name: sys.exit(run_guarded(lambda: (work(), time.sleep(10))))
app.main()
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (exit_code, message)
