"""What several floors' tests share: golden text, refreshed by one flag and reviewed as a diff; no property is timed."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.surroundings.plugin",
    "tests.sample",
    "tests.browser",
    "tests.longest_first",
    "tests.without_extras",
]
collect_ignore = ["example_project"]
"""A project of others: `tests/sim/scenario/test_pytest_plugin.py` runs its tests as they would."""

settings.register_profile("gpuops", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("gpuops"), derandomize=True, database=None, max_examples=12)
settings.load_profile("gpuops")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write the golden files anew instead of comparing")
    parser.addoption("--part", default="0/1", metavar="K/N", help="every N-th test, from number K on")
    parser.addoption("--all-cases", action="store_true", help="draw no cases of long tests, but run all")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, step = map(int, config.getoption("part").split("/"))
    chosen = items[first::step]
    deselected = [item for number, item in enumerate(items) if number % step != first]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = chosen


MEMORY: Final = Path("/dev/shm")
ENOUGH_BYTES: Final = 2 * 1024**3


def _keep_temporary_files_in_memory() -> None:
    """Where there is room, and programs may be started: thousands of small files, and no fsync waits for a disk."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK) or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return
    if shutil.disk_usage(MEMORY).free >= ENOUGH_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


_keep_temporary_files_in_memory()
# For the format `iri`, which no schema of ours has, jsonschema imports what makes 38 grammars at once: a second.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
gc.disable()


class FailuresAtOnce:
    """Names what fails when it does, for a run that is ended before its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            first_line = crash.message.splitlines()[:1] if crash is not None else []
            terminal: Any = self._plugins.get_plugin("terminalreporter")
            terminal.write_line("")
            terminal.write_line(" ".join((report.nodeid, *first_line)))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end, what of it is garbage too (its collection is 0.7 s in each
    worker): garbage collection skips it, in forked processes too. From here on it is as seldom as in the command.
    """
    from gpuops.cli.app import NEW_OBJECTS_BEFORE_COLLECTION

    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_BEFORE_COLLECTION)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def durable() -> Iterator[Callable[[Any, Any], None]]:
    """No commit of a test's journal waits for the disk: a killed process needs no sync, and no test cuts the power.

    Yields what makes a connection durable outside tests.
    """
    from gpuops.execute.journal import database

    real = database._make_durable

    def begin(connection: Any, record: Any) -> None:
        real(connection, record)
        connection.execute("PRAGMA synchronous=OFF")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(database, "_make_durable", begin)
        yield real


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares with a file beside the test; `--refresh-golden` writes it anew, to be reviewed as a diff."""

    def compare(name: str, text: str) -> None:
        path = Path(str(request.path)).parent / "golden" / name
        if request.config.getoption("--refresh-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"pytest {request.node.nodeid} --refresh-golden renews {name}"

    return compare
