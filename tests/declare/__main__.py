"""python -m tests.declare worlds --seeds FIRST:END [--jobs N]
python -m tests.declare kills --seeds FIRST:END [--jobs N]

Random clusters with random site files: each file is applied and the end judged; or the call is killed at each line of
its journal and applied again. Exit code 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from gpuops.sim.world import World
from tests.declare.play import play_kill, play_seed
from tests.declare.worlds import random_file, random_world


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.declare", description="Random sites and their files.")
    parser.add_argument("what", choices=("worlds", "kills"))
    parser.add_argument("--seeds", default="0:1000", help="FIRST:END, END not among them")
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args(arguments)
    first, _, end = chosen.seeds.partition(":")
    play, began = _world if chosen.what == "worlds" else _kills, time.monotonic()
    ends, wrong = Counter[str](), 0
    with ProcessPoolExecutor(chosen.jobs) as pool:
        plays = {pool.submit(play, seed): seed for seed in range(int(first), int(end))}
        for number, done in enumerate(as_completed(plays), 1):
            outcomes, faults = done.result()
            ends.update(outcomes)
            wrong += bool(faults)
            for fault in faults:
                print(f"seed {plays[done]}: {fault}", flush=True)
            if number % 25 == 0:
                print(f"{number} of {len(plays)} seeds, {wrong} wrong, {dict(ends)}", flush=True)
    print(f"{len(plays)} seeds, {wrong} wrong, {dict(ends)} in {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def _world(seed: int) -> tuple[Counter[str], list[str]]:
    with TemporaryDirectory() as folder:
        try:
            outcome, faults = play_seed(seed, Path(folder))
        except Exception:
            outcome, faults = "error", [traceback.format_exc()]
    return Counter([outcome]), faults


def _kills(seed: int) -> tuple[Counter[str], list[str]]:
    """Play this seed once without a kill, and, if its file is feasible, once for each kill."""

    def make() -> tuple[World, str]:
        random = Random(seed)
        world = random_world(random)
        return world, random_file(random, world)

    outcomes, faults = _world(seed)
    if "applied" not in outcomes:
        return outcomes, faults
    line, was_killed = 0, True
    while was_killed:
        with TemporaryDirectory() as folder:
            try:
                was_killed, of_kill = play_kill(make, line, Path(folder))
            except Exception:
                of_kill = [traceback.format_exc()]
        faults += [f"killed at {line}: {fault}" for fault in of_kill]
        outcomes["kill"] += was_killed
        line += 1
    return outcomes, faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
