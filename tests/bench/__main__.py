"""`make bench`: every benchmark, or those named; exit code 1 when a budget is broken.

python -m tests.bench [NAME ...]        names: help, catalog, read, parser, simulator, tasks, churn,
                                        decisions, openb, profiles, departures, migrations, ablation,
                                        batch, defrag, numa, rotation, night, executor, journal, vms
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from importlib import import_module

from rich.console import Console

from tests.bench.verdict import Result, show

# One name, one module with `run()`; each is imported only when chosen.
MODULES = {
    "help": "tests.bench.help_start",
    "catalog": "tests.bench.catalog_load",
    "read": "tests.bench.bulk_read",
    "parser": "tests.bench.parser",
    "simulator": "tests.bench.simulator_cost",
    "tasks": "tests.bench.many_tasks",
    "churn": "tests.bench.churn",
    "decisions": "tests.bench.decisions",
    "openb": "tests.bench.openb",
    "profiles": "tests.bench.profiles",
    "departures": "tests.bench.departures",
    "migrations": "tests.bench.migrations",
    "ablation": "tests.bench.ablation",
    "defrag": "tests.bench.defrag",
    "batch": "tests.bench.batch",
    "rotation": "tests.bench.rotation",
    "night": "tests.bench.night",
    "executor": "tests.bench.executor",
    "numa": "tests.bench.numa_local",
    "journal": "tests.bench.journal",
    "vms": "tests.bench.many_vms",
}


def main(arguments: list[str]) -> int:
    """Run the chosen benchmarks and print their tables; 1 when any budget is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Speed, memory and placement beside the peers."
    )
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(MODULES)} (default: all)")
    chosen = parser.parse_args(arguments).name or list(MODULES)
    if unknown := set(chosen) - MODULES.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    console = Console(width=max(Console().width, 100))
    broken = False
    for name in chosen:
        for result in _results(name):
            show(console, result)
            broken |= result.broken
    return 1 if broken else 0


def _results(name: str) -> Iterable[Result]:
    run: Callable[[], Result | Iterable[Result]] = import_module(MODULES[name]).run
    outcome = run()
    return [outcome] if isinstance(outcome, Result) else outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
