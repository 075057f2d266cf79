"""Remove: each control in turn taken out of a copy of the project, and its test run there until it goes red.

One process loads the libraries once and forks for each removal: to start Python and import them would cost more than
most of the tests do. The package itself and its tests are imported in the child, from the copy.
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutants.table import ROOT, apply
from tests.threats.table import Removal

PATIENCE_S: Final = 600.0
"""For one test, on a machine that others use too."""
_LIBRARIES: Final = (
    "pyVmomi", "lxml.etree", "pydantic", "sqlalchemy", "typer.testing", "rich.console", "yaml", "cryptography.x509",
)  # fmt: skip
_LEFT_OUT: Final = shutil.ignore_patterns(".git", ".venv", ".tools", ".*_cache", ".hypothesis", "shared", "bin")
_RED: Final = 1
"""pytest's exit code when tests failed; other codes mean that it could not run them."""


@dataclass(frozen=True, slots=True)
class End:
    """What became of a test without its control. `why` is empty where it went red for its reason."""

    removal: Removal
    why: str
    seconds: float

    def __str__(self) -> str:
        verdict = self.why or "red, as it should be"
        return f"{self.removal.threat:4} {self.removal.name:44} {self.seconds:5.1f} s  {verdict}"


def play(chosen: Iterable[Removal]) -> Iterator[End]:
    """The end of each. Raises ValueError for an edit that does not fit the source."""
    for library in _LIBRARIES:
        importlib.import_module(library)
    with TemporaryDirectory(prefix="gpuops-threats-") as where:
        root = Path(where) / "gpuops-copy"
        shutil.copytree(ROOT, root, ignore=_LEFT_OUT)
        for removal in chosen:
            with _without(removal, root):
                yield _judge_end(removal, root)


@contextmanager
def _without(removal: Removal, root: Path) -> Iterator[None]:
    """The copy with the control taken away, and as it was afterwards. No stale bytecode: it goes by seconds."""
    before = {edit.file: (root / edit.file).read_text(encoding="utf-8") for edit in removal.edits}
    try:
        apply(removal.edits, root)
        for file in before:
            path = root / file
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()
        yield
    finally:
        for file, text in before.items():
            (root / file).write_text(text, encoding="utf-8")


def _judge_end(removal: Removal, root: Path) -> End:
    began = time.monotonic()
    output = root.parent / "output.txt"
    pid = os.fork()
    if pid == 0:
        _run(removal, root, output)
    code = _wait_for(pid)
    output_text = output.read_text(encoding="utf-8", errors="replace")
    seconds = time.monotonic() - began
    if code != _RED:
        why = {0: "GREEN without its control", None: "does not end"}.get(code, f"could not be run ({code})")
        return End(removal, f"{why}\n{output_text[-1500:] if code else ''}".rstrip(), seconds)
    return End(
        removal, "" if removal.says in output_text else f"red for another reason:\n{output_text[-3000:]}", seconds
    )


def _run(removal: Removal, root: Path, output: Path) -> None:
    """In the child: pytest with the copy first on the path, for it and for whatever it starts."""
    code = 3
    try:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8", write_through=True)
        sys.stderr = sys.stdout
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path[:] = [str(root), *(path_entry for path_entry in sys.path if path_entry not in (str(ROOT), ""))]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("gpuops", "tests")]:
            del sys.modules[name]  # under pytest each process has the original's clock from its start on
        os.chdir(root)
        import pytest

        # seconds where nothing else runs; beside other tests it is not to end as one that hangs does
        patience = ["--timeout", "500"]
        words = ["-m", "", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *patience]
        code = pytest.main([removal.test, *words])
        import gpuops

        if not Path(gpuops.__file__).is_relative_to(root):
            code = 4
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait_for(pid: int) -> int | None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
