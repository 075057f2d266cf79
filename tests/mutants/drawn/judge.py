"""Judge: a process in which one module of the engine is mutated, and nights until one breaks something.

The libraries are imported once; the engine and the nights are imported in a child that was forked for its mutant.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from tests.mutants.drawn.draw import members, source_of
from tests.mutants.drawn.operators import Mutation, mutate
from tests.mutants.table import ROOT

BUDGET_S: Final = 120.0
"""Of one core, for each mutant."""
ENDLESS_S: Final = 20
"""Of one core, for one night."""
SILENT_S: Final = 600
"""By the clock on the wall, for one night: its runs wait for each other for ever."""
SHRINKING_S: Final = 60.0
ENDLESS: Final = "endless"
"""What such a night is said to break."""
_LIBRARIES: Final = (
    "pyVmomi", "lxml.etree", "pydantic", "sqlalchemy", "sqlalchemy.dialects.sqlite", "yaml", "cryptography.x509",
    "pytest", "concurrent.futures",
)  # fmt: skip

Found = dict[str, Any]
"""`night` (or None), `said`, `nights` and `seconds`."""


class _Endless(BaseException):
    """A night that does not end: nothing of the engine may catch it."""


def load_libraries() -> None:
    for library in _LIBRARIES:
        importlib.import_module(library)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which nights a mutant is given: `first`, and then so many of all, but those which the engine itself breaks."""

    budget_s: float
    area: str
    most: int = sys.maxsize
    broken: tuple[Found, ...] = ()
    first: tuple[Found, ...] = ()
    """Nights that the engine is known to hold."""
    shrink: bool = False


def hunt(mutation: Mutation, plan: Plan) -> Found:
    """Plays nights until one breaks something that the engine as it is does not, or the plan is at its end.

    The night is the shrunk one where the engine as it is holds that too: with fewer events it may be another night.
    """
    broken = list(plan.broken)
    while True:
        outcome = _run_forked(lambda: _hunt(mutation, replace(plan, broken=tuple(broken))), plan.budget_s)
        if outcome["night"] is None or outcome["met"] in plan.first:
            return outcome
        if not clean([outcome["met"]]):
            return outcome if not clean([outcome["night"]]) else {**outcome, "night": outcome["met"]}
        broken.append(outcome["met"])


def clean(nights: Sequence[Found]) -> list[str]:
    """What these nights break under the engine as it is."""
    return list(_run_forked(lambda: _clean(nights), 30.0 * len(nights))["said"])


def _hunt(mutation: Mutation, plan: Plan) -> Found:
    _mutate(mutation)
    began, played = time.process_time(), 0
    try:
        from tests.mutants.drawn.kinds import Night, nights, shrunk
    except Exception as error:  # of what is executed when it is imported
        return {"night": None, "said": f"import: {type(error).__name__}: {error}", "nights": 0, "seconds": 0.0}
    first_nights, broken = map(Night.from_json, plan.first), {Night.from_json(each) for each in plan.broken}
    gc.freeze()
    for night in chain(first_nights, islice(nights(plan.area), plan.most)):
        if time.process_time() - began > plan.budget_s:
            break
        if night in broken:
            continue
        played += 1
        if problems := _within_limit(night.said):
            seconds, fewest = time.process_time() - began, night
            if plan.shrink and not problems[0].startswith(ENDLESS):
                fewest = _within(SHRINKING_S, partial(shrunk, night)) or night
            met = night.to_json()
            return {"night": fewest.to_json(), "met": met, "said": problems[0], "nights": played, "seconds": seconds}
    return {"night": None, "said": None, "nights": played, "seconds": time.process_time() - began}


def _clean(nights: Sequence[Found]) -> Found:
    from tests.mutants.drawn.kinds import Night

    problems = []
    for night_document in nights:
        night = Night.from_json(night_document)
        problems += [f"{night.kind} {night.seed}: {problem}" for problem in _within_limit(night.said)]
    return {"said": problems}


def _within_limit(problems_of: Callable[[], list[str]]) -> list[str]:
    try:
        return _within(ENDLESS_S, problems_of, otherwise=[f"{ENDLESS}: the night does not end"])
    except MemoryError:
        return ["MemoryError: the night has no end to what it keeps"]


def _within(seconds: float, act: Callable[[], Any], otherwise: Any = None) -> Any:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _Endless

    for number, clock, after in ((signal.SIGVTALRM, signal.ITIMER_VIRTUAL, seconds),
                                 (signal.SIGALRM, signal.ITIMER_REAL, SILENT_S)):  # fmt: skip
        signal.signal(number, ring)
        signal.setitimer(clock, after)
    try:
        return act()
    except _Endless:
        return otherwise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


class _Mutating(MetaPathFinder):
    """Finds one module, with its mutation in it."""

    def __init__(self, module: str, path: Path, tree: ast.Module) -> None:
        self._module, self._path, self._tree = module, path, tree

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        return spec_from_file_location(name, self._path, loader=_Loader(name, str(self._path), self._tree))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


def _mutate(mutation: Mutation) -> None:
    assert "tests.nights" not in sys.modules, "the nights are imported already, with the engine as it is"
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpuops"]:
        del sys.modules[name]  # under pytest each process has the clock from its start on
    module = mutation.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    tree = mutate(mutation, source_of(mutation.file), members())
    sys.meta_path.insert(0, _Mutating(module, ROOT / mutation.file, tree))


def _run_forked(act: Callable[[], Found], budget_s: float) -> Found:
    """What it tells, from a child of this process. A child that is killed or crashes raises RuntimeError."""
    with TemporaryDirectory(prefix="gpuops-judge-") as folder:
        outcome_file, errors = Path(folder) / "told.json", Path(folder) / "errors.txt"
        pid = os.fork()
        if pid == 0:
            _child(act, outcome_file, errors, budget_s)
        _, status = os.waitpid(pid, 0)
        if outcome_file.is_file():
            outcome: Found = json.loads(outcome_file.read_text(encoding="utf-8"))
            return outcome
        if os.waitstatus_to_exitcode(status) in (-signal.SIGXCPU, -signal.SIGKILL):
            reason = f"{ENDLESS}: the process does not end"
            return {"night": None, "said": reason, "nights": 0, "seconds": budget_s}
        raise RuntimeError(errors.read_text(encoding="utf-8") or f"the judge ended with {status}")


def _child(act: Callable[[], Found], outcome_file: Path, errors: Path, budget_s: float) -> None:
    try:
        most_s = int(budget_s + SHRINKING_S + 10 * ENDLESS_S)
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 10))
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        outcome = act()
        written = outcome_file.with_suffix(".part")
        written.write_text(json.dumps(outcome, default=str), encoding="utf-8")
        written.rename(outcome_file)
    except BaseException:
        errors.write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        os._exit(0)
