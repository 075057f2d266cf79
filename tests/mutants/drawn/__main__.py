"""Mutants that a tool draws, judged by nights alone.

python -m tests.mutants.drawn judge [--seconds S] [--each N] [--area AREA] [--jobs J] [--dry]   all, into RESULTS.md
python -m tests.mutants.drawn refresh [--seconds S] [--jobs J]                    those that no recorded night kills
python -m tests.mutants.drawn replay                                                            the recorded nights kill
python -m tests.mutants.drawn list [--area AREA]                                                what is drawn
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.mutants.drawn.draw import AREAS, EACH, drawn, is_there
from tests.mutants.drawn.judge import BUDGET_S, Plan, clean, hunt, load_libraries
from tests.mutants.drawn.operators import Mutation
from tests.mutants.drawn.results import COMMAND, RECORD, Judged, read, write

LEAST: Final = 0.9
"""Of the mutants, killed; of those that are recorded, still in the source."""
AGAIN_S: Final = 30.0
"""For a mutant whose recorded night does not kill it any more, since the worlds have changed."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.drawn")
    verbs = parser.add_subparsers(dest="verb", required=True)
    judge, listed, again, fresh = (verbs.add_parser(verb) for verb in ("judge", "list", "replay", "refresh"))
    for each in (judge, listed):
        each.add_argument("--area", choices=[*AREAS], action="append")
        each.add_argument("--each", type=int, default=EACH)
    for each in (judge, fresh):
        each.add_argument("--seconds", type=float, default=BUDGET_S)
    judge.add_argument("--dry", action="store_true", help="write nothing down")
    for each in (judge, again, fresh):
        each.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args(arguments)
    if asked.verb == "replay":
        return replay(asked.jobs)
    if asked.verb == "refresh":
        return refresh(asked.seconds, asked.jobs)
    chosen = [(area, one) for area in asked.area or AREAS for one in drawn(area, asked.each)]
    if asked.verb == "list":
        print(*(f"{area:9} {one.name}" for area, one in chosen), sep="\n")
        return 0
    load_libraries()
    found = list(judged(chosen, asked.seconds, asked.jobs))
    killed = sum(each.said is not None for each in found)
    print(f"{killed} of {len(found)} killed")
    if not asked.dry:
        write(found, asked.seconds)
    return 0 if killed >= LEAST * len(found) else 1


def judged(chosen: Sequence[tuple[str, Mutation]], seconds: float, jobs: int) -> Iterator[Judged]:
    """What becomes of each, printed as it comes."""
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda each: hunt(each[1], Plan(seconds, each[0], shrink=True)), chosen)
        for (area, mutation), each in zip(chosen, found, strict=True):
            one = Judged(area, mutation, each["night"], each["said"], each["nights"], round(each["seconds"], 1))
            print(one, flush=True)
            yield one


def refresh(seconds: float, jobs: int) -> int:
    """Judges anew which recorded nights kill no more, and which mutants nobody killed or judged."""
    load_libraries()
    known = {each.mutation: each for each in read()} if RECORD.is_file() else {}
    held = [each.night for each in known.values() if each.night is not None]
    for said in clean(held):
        print(f"broken by the engine as it is: {said}", flush=True)
    chosen = [(area, one) for area in AREAS for one in drawn(area)]

    def again(area: str, mutation: Mutation) -> Judged:
        was = known.get(mutation)
        first = (was.night,) if was is not None and was.night is not None else ()
        found = hunt(mutation, Plan(seconds, area, first=first, shrink=True))
        return Judged(area, mutation, found["night"], found["said"], found["nights"], round(found["seconds"], 1))

    with ThreadPoolExecutor(jobs) as pool:
        found = []
        for each in pool.map(lambda one: again(*one), chosen):
            print(each, flush=True)
            found.append(each)
    write(found, seconds)
    return 0 if sum(each.said is not None for each in found) >= LEAST * len(found) else 1


def replay(jobs: int) -> int:
    """Whether each recorded mutant is still one of the source, and is still killed."""
    if not RECORD.is_file():
        print(f"no mutants are recorded: {COMMAND} draws and judges them")
        return 1
    load_libraries()
    recorded = [each for each in read() if each.said is not None]
    nights = [each.night for each in recorded if each.night is not None]
    wrong = [f"broken by the engine as it is: {said}" for said in clean(nights)]
    there = [each for each in recorded if is_there(each.mutation)]
    gone = [each.mutation.name for each in recorded if each not in there]
    with ThreadPoolExecutor(jobs) as pool:
        wrong += [said for said in pool.map(_replayed, there) if said is not None]
    print(*wrong, *(f"what it changes is not there any more: {name}" for name in gone), sep="\n")
    print(f"{len(there)} mutants replayed, {len(wrong)} of them not as recorded; {len(gone)} are gone")
    too_few = len(there) < LEAST * len(recorded)
    if wrong or too_few:
        print(f"once the engine is right, {COMMAND} draws and judges them anew")
    return 1 if wrong or too_few else 0


def _replayed(each: Judged) -> str | None:
    found = hunt(each.mutation, Plan(AGAIN_S, each.area, first=() if each.night is None else (each.night,)))
    return None if found["said"] is not None else f"not killed any more: {each.mutation.name}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
