"""Play single nights and many nights.

python -m tests.nights play [--nights N] [--first SEED] [--step K] [--jobs J]        nights, effects, faults, violations
python -m tests.nights replay SEED|FILE                                              what happened in one
python -m tests.nights replay SEED --aims FAULT/STATE,...                            the same for an aimed night
python -m tests.nights coverage [--ordinary N] [--nights N] [--first SEED] [--jobs J]       which fault met which state
python -m tests.nights results [--ordinary N] [--nights N] [--first SEED] [--jobs J]        the same, into RESULTS.md
python -m tests.nights gates [--nights N] [--first SEED] [--jobs J] [--keep]    behind a gate; kept in RESULTS.md
python -m tests.nights gate SEED                                                what happened in one of these
python -m tests.nights jobs [--nights N] [--first SEED] [--jobs J]              with jobs in containers, some a story
python -m tests.nights shrink SEED [--aims FAULT/STATE,...] [--out FILE]        the fewest events that still break it
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from tests.nights.faults.event import Event
from tests.nights.gated import checkers as gated_checkers
from tests.nights.gated import tally as gated_tally
from tests.nights.gated.night import log_lines
from tests.nights.gated.night import play as play_gated
from tests.nights.judging.checkers import violations
from tests.nights.measuring.aiming import aimed_night, pairs_of
from tests.nights.measuring.coverage import MOST, ORDINARY, Coverage, cover, of_ordinary, put_section, section
from tests.nights.measuring.tally import tally
from tests.nights.playing.night import Nightly
from tests.nights.playing.played import lines
from tests.nights.world.worlds import Site


def broken(seed: int, events: Sequence[Event], site: Site | None = None) -> frozenset[str]:
    """The invariants (`I1`) that a night under these events breaks; a crash of the engine counts as one. `site`: None =
    that of the seed."""
    try:
        return frozenset(violation.partition(":")[0] for violation in violations(Nightly(seed, events, site).play()))
    except Exception as error:
        return frozenset({type(error).__name__})


def shrunk(seed: int, events: Sequence[Event], site: Site | None = None) -> tuple[Event, ...]:
    """As few of the events as still break one of the invariants that all of them broke: halves first, then singles."""
    broken_by_all = broken(seed, events, site)
    events_left, size = list(events), max(1, len(events) // 2)
    while size:
        start = 0
        while start < len(events_left):
            fewer = events_left[:start] + events_left[start + size :]
            if broken_by_all & broken(seed, fewer, site):
                events_left = fewer
            else:
                start += size
        size //= 2
    return tuple(events_left)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nights")
    verbs = parser.add_subparsers(dest="verb", required=True)
    _add_many_nights(verbs.add_parser("play"), 1000).add_argument(
        "--step", type=int, default=1, help="2 = the small half"
    )
    replay_parser = verbs.add_parser("replay")
    replay_parser.add_argument("night")
    replay_parser.add_argument("--aims", help="FAULT/STATE,...: the night of that seed which `coverage` aims at them")
    for verb in ("coverage", "results"):
        _add_many_nights(verbs.add_parser(verb), MOST).add_argument(
            "--ordinary", type=int, default=len(ORDINARY), help="nights that draw their trouble; the others are aimed"
        )
    _add_many_nights(verbs.add_parser("gates"), 1000).add_argument(
        "--keep", action="store_true", help="write what they come to into RESULTS.md"
    )
    _add_many_nights(verbs.add_parser("jobs"), 2000)
    verbs.add_parser("gate").add_argument("seed", type=int)
    fewer = verbs.add_parser("shrink")
    fewer.add_argument("seed", type=int)
    fewer.add_argument("--aims", help="as of replay")
    fewer.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.verb == "play":
        seeds = range(options.first, options.first + options.nights * options.step, options.step)
        tally_of_nights = tally(seeds, jobs=options.jobs)
        print(tally_of_nights)
        if tally_of_nights.broken:
            print(*first_failure(tally_of_nights.broken[0]), sep="\n")
        return 1 if tally_of_nights.broken else 0
    if options.verb in ("coverage", "results"):
        ordinary = of_ordinary(tally(ORDINARY[: options.ordinary], jobs=options.jobs))
        reached = cover(options.nights, jobs=options.jobs, first=options.first, before=ordinary)
        return _report_coverage(reached, keep=options.verb == "results")
    if options.verb == "gates":
        return _gates(range(options.first, options.first + options.nights), jobs=options.jobs, keep=options.keep)
    if options.verb == "jobs":
        return _jobs(options.first, options.nights, jobs=options.jobs)
    if options.verb == "gate":
        return _gate(options.seed)
    if options.verb == "replay":
        return _replay(options.night, options.aims)
    return _shrink(options.seed, options.aims, options.out)


def _add_many_nights(parser: argparse.ArgumentParser, nights: int) -> argparse.ArgumentParser:
    parser.add_argument("--nights", type=int, default=nights, help="how many, at most")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    return parser


def first_failure(seed: int) -> list[str]:
    """What it takes to have that night again: seed, commit and schedule, and how to look further."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip() or "unknown"
    return [
        f"seed {seed}, commit {commit}, schedule:",
        *(json.dumps(event.to_json(), default=str) for event in Nightly(seed).played.events),
        f"fewest events that still break it: python -m tests.nights shrink {seed}",
    ]


def _report_coverage(coverage: Coverage, *, keep: bool) -> int:
    if keep:
        put_section(section(coverage))
    print(section(coverage))
    print(*coverage.broken, *(f"called impossible, and reached: {pair}" for pair in coverage.surprising()), sep="\n")
    return 1 if coverage.rare() or coverage.surprising() or coverage.broken else 0


def _gates(seeds: range, *, jobs: int, keep: bool) -> int:
    tally_of_nights = gated_tally.tally(seeds, jobs=jobs)
    print(tally_of_nights)
    if keep:
        put_section(gated_tally.section(tally_of_nights))
    return 1 if tally_of_nights.violations or tally_of_nights.harvest < gated_tally.LEAST_HARVEST else 0


def _jobs(first: int, nights: int, *, jobs: int) -> int:
    from tests.nights.jobs.checkers import tally as tally_jobs

    tally_of_stories = tally_jobs(count(first), jobs=jobs, nights=nights)
    print(*tally_of_stories.lines(), sep="\n")
    return 1 if tally_of_stories.violations or tally_of_stories.unmet() else 0


def _gate(seed: int) -> int:
    gated = play_gated(seed)
    print(*log_lines(gated), sep="\n")
    broken_invariants = gated_checkers.violations(gated)
    print(*broken_invariants, sep="\n")
    return 1 if broken_invariants else 0


def _nightly(seed: int, aims: str | None) -> Nightly:
    return Nightly(seed) if aims is None else aimed_night(seed, pairs_of(aims))


def _shrink(seed: int, aims: str | None, out: Path | None) -> int:
    night = _nightly(seed, aims)
    events = night.played.events
    if not broken(seed, events, night.site):
        print(f"the night of seed {seed} breaks no invariant: there is nothing to shrink")
        return 0
    least = [event.to_json() for event in shrunk(seed, events, night.site)]
    document = json.dumps({"seed": seed, **({"aims": aims} if aims else {}), "events": least}, indent=1, default=str)
    if out:
        out.write_text(document, encoding="utf-8")
    print(document)
    return 0


def _replay(night: str, aims: str | None) -> int:
    if night.isdigit():
        played = _nightly(int(night), aims).play()
    else:
        document = json.loads(Path(night).read_text(encoding="utf-8"))
        events = [Event.from_json(event) for event in document["events"]]
        played = Nightly(document["seed"], events, _nightly(document["seed"], document.get("aims")).site).play()
    print(*lines(played), sep="\n")
    broken_invariants = violations(played)
    print(*broken_invariants, sep="\n")
    return 1 if broken_invariants else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
