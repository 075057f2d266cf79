"""Nights by hand and in numbers.

python -m tests.nights play [--nights N] [--first SEED] [--step K] [--jobs J]   nights, effects, faults, violations
python -m tests.nights replay SEED|FILE                                         what happened in one
python -m tests.nights shrink SEED [--out FILE]                                 the fewest events that still break it
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.nights.checkers import violations
from tests.nights.event import Event
from tests.nights.log import lines
from tests.nights.night import Nightly, play
from tests.nights.shrink import shrunk
from tests.nights.tally import tally


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nights")
    verbs = parser.add_subparsers(dest="verb", required=True)
    many = verbs.add_parser("play")
    many.add_argument("--nights", type=int, default=1000)
    many.add_argument("--first", type=int, default=0)
    many.add_argument("--step", type=int, default=1, help="2 = the small half")
    many.add_argument("--jobs", type=int, default=2)
    verbs.add_parser("replay").add_argument("night")
    fewer = verbs.add_parser("shrink")
    fewer.add_argument("seed", type=int)
    fewer.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    if asked.verb == "play":
        seeds = range(asked.first, asked.first + asked.nights * asked.step, asked.step)
        found = tally(seeds, jobs=asked.jobs)
        print(found)
        return 1 if found.violations else 0
    if asked.verb == "replay":
        return _replay(asked.night)
    events = shrunk(asked.seed, Nightly(asked.seed).played.events)
    document = json.dumps({"seed": asked.seed, "events": [event.to_json() for event in events]}, indent=1, default=str)
    if asked.out:
        asked.out.write_text(document, encoding="utf-8")
    print(document)
    return 0


def _replay(night: str) -> int:
    if night.isdigit():
        played = play(int(night))
    else:
        document = json.loads(Path(night).read_text(encoding="utf-8"))
        played = play(document["seed"], [Event.from_json(event) for event in document["events"]])
    print(*lines(played), sep="\n")
    broken = violations(played)
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
