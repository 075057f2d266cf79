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
    judge, listed, replay_parser, fresh = (verbs.add_parser(verb) for verb in ("judge", "list", "replay", "refresh"))
    for verb_parser in (judge, listed):
        verb_parser.add_argument("--area", choices=[*AREAS], action="append")
        verb_parser.add_argument("--each", type=int, default=EACH)
    for verb_parser in (judge, fresh):
        verb_parser.add_argument("--seconds", type=float, default=BUDGET_S)
    judge.add_argument("--dry", action="store_true", help="write nothing down")
    for verb_parser in (judge, replay_parser, fresh):
        verb_parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.verb == "replay":
        return replay(options.jobs)
    if options.verb == "refresh":
        return refresh(options.seconds, options.jobs)
    chosen = [(area, mutation) for area in options.area or AREAS for mutation in drawn(area, options.each)]
    if options.verb == "list":
        print(*(f"{area:9} {mutation.name}" for area, mutation in chosen), sep="\n")
        return 0
    load_libraries()
    judgements = list(judge_mutations(chosen, options.seconds, options.jobs))
    killed = sum(verb_parser.said is not None for verb_parser in judgements)
    print(f"{killed} of {len(judgements)} killed")
    if not options.dry:
        write(judgements, options.seconds)
    return 0 if killed >= LEAST * len(judgements) else 1


def judge_mutations(chosen: Sequence[tuple[str, Mutation]], seconds: float, jobs: int) -> Iterator[Judged]:
    """What becomes of each, printed as it comes."""
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = pool.map(lambda outcome: hunt(outcome[1], Plan(seconds, outcome[0], shrink=True)), chosen)
        for (area, mutation), outcome in zip(chosen, outcomes, strict=True):
            judgement = Judged(
                area, mutation, outcome["night"], outcome["said"], outcome["nights"], round(outcome["seconds"], 1)
            )
            print(judgement, flush=True)
            yield judgement


def refresh(seconds: float, jobs: int) -> int:
    """Judge again which recorded nights kill no more, and which mutants were not killed or judged."""
    load_libraries()
    recorded = {judgement.mutation: judgement for judgement in read()} if RECORD.is_file() else {}
    nights_held = [judgement.night for judgement in recorded.values() if judgement.night is not None]
    for problem in clean(nights_held):
        print(f"broken by the engine as it is: {problem}", flush=True)
    chosen = [(area, chosen_mutation) for area in AREAS for chosen_mutation in drawn(area)]

    def judge_again(area: str, mutation: Mutation) -> Judged:
        recorded_before = recorded.get(mutation)
        first = (recorded_before.night,) if recorded_before is not None and recorded_before.night is not None else ()
        outcome = hunt(mutation, Plan(seconds, area, first=first, shrink=True))
        return Judged(
            area, mutation, outcome["night"], outcome["said"], outcome["nights"], round(outcome["seconds"], 1)
        )

    with ThreadPoolExecutor(jobs) as pool:
        outcome = []
        for judgement in pool.map(lambda chosen_mutation: judge_again(*chosen_mutation), chosen):
            print(judgement, flush=True)
            outcome.append(judgement)
    write(outcome, seconds)
    return 0 if sum(judgement.said is not None for judgement in outcome) >= LEAST * len(outcome) else 1


def replay(jobs: int) -> int:
    """Whether each recorded mutant is still one of the source, and is still killed."""
    if not RECORD.is_file():
        print(f"no mutants are recorded: {COMMAND} draws and judges them")
        return 1
    load_libraries()
    recorded = [judgement for judgement in read() if judgement.said is not None]
    nights = [judgement.night for judgement in recorded if judgement.night is not None]
    wrong = [f"broken by the engine as it is: {problem}" for problem in clean(nights)]
    present = [judgement for judgement in recorded if is_there(judgement.mutation)]
    missing_names = [judgement.mutation.name for judgement in recorded if judgement not in present]
    with ThreadPoolExecutor(jobs) as pool:
        wrong += [problem for problem in pool.map(_replay_mutant, present) if problem is not None]
    print(*wrong, *(f"what it changes is not there any more: {name}" for name in missing_names), sep="\n")
    print(f"{len(present)} mutants replayed, {len(wrong)} of them not as recorded; {len(missing_names)} are gone")
    too_few = len(present) < LEAST * len(recorded)
    if wrong or too_few:
        print(f"once the engine is right, {COMMAND} draws and judges them anew")
    return 1 if wrong or too_few else 0


def _replay_mutant(judgement: Judged) -> str | None:
    outcome = hunt(
        judgement.mutation, Plan(AGAIN_S, judgement.area, first=() if judgement.night is None else (judgement.night,))
    )
    return None if outcome["said"] is not None else f"not killed any more: {judgement.mutation.name}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
