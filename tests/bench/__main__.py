"""`make bench`: every benchmark, or those named; exit code 1 when a budget is broken.

python -m tests.bench [NAME ...]
python -m tests.bench results [NAME ...]    the same, and their sections of RESULTS.md are written anew

names: help, wires, commands, simulator, decisions, profiles, firstcome, departures, ablation, filling, several, batch,
requests, walk, sizing, diagnosis
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

from rich.console import Console

from gpuops.clock import wall_clock
from tests.bench import results as page
from tests.bench.verdict import Result, show

# One name, one module with `run()`; each is imported only when chosen.
MODULES = {
    "help": "tests.bench.reads.help_start",
    "wires": "tests.bench.reads.wires",
    "commands": "tests.bench.reads.commands",
    "simulator": "tests.bench.simulator.simulator_cost",
    "decisions": "tests.bench.placement.decisions",
    "profiles": "tests.bench.trace.profiles",
    "firstcome": "tests.bench.trace.first_come",
    "departures": "tests.bench.trace.departures",
    "ablation": "tests.bench.trace.ablation",
    "filling": "tests.bench.placement.filling",
    "several": "tests.bench.placement.several",
    "batch": "tests.bench.placement.batch",
    "requests": "tests.bench.changes.requests_per_run",
    "walk": "tests.bench.changes.walk",
    "sizing": "tests.bench.advice.sizing",
    "diagnosis": "tests.bench.advice.diagnosis",
}


WRITE = "results"


def main(arguments: list[str]) -> int:
    """Run the chosen benchmarks and print their tables; 1 when any budget is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Speed, memory and placement beside the peers."
    )
    parser.add_argument(
        "name",
        nargs="*",
        metavar="NAME",
        help=f"one or more of: {', '.join(MODULES)} (default: all); "
        f"`{WRITE}` before them also writes their sections of RESULTS.md",
    )
    chosen = parser.parse_args(arguments).name
    write = chosen[:1] == [WRITE]
    chosen = chosen[write:] or list(MODULES)
    if unknown := set(chosen) - MODULES.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    console = Console(width=max(Console().width, 100))
    broken = False
    for name in chosen:
        measured = []
        for result in _results(name):
            show(console, result)
            broken |= result.broken
            measured.append(result)
        if write:
            _write(console, name, measured)
    return 1 if broken else 0


def _write(console: Console, name: str, measured: Sequence[Result]) -> None:
    """Put the section of a benchmark into RESULTS.md, unless it lacks its input and has a section already."""
    text = page.FILE.read_text(encoding="utf-8")
    lacking = page.lacking(measured)
    if lacking and name in page.sections(text)[1]:
        console.print(f"RESULTS.md: the section {name} stays as it is ({lacking})")
        return
    new_section = page.section(name, [result for result in measured if result.figures], wall_clock())
    page.FILE.write_text(page.renew_page(text, {name: new_section}, list(MODULES)), encoding="utf-8")


def _results(name: str) -> Iterable[Result]:
    run: Callable[[], Result | Iterable[Result]] = import_module(MODULES[name]).run
    outcome = run()
    return [outcome] if isinstance(outcome, Result) else outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
