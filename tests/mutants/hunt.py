"""Hunt: nights under the engine that is first on the path, until a checker names the invariant; told as JSON.

python -m tests.mutants.hunt INVARIANT FIRST SECONDS [quiet] [gated] [soap] [SITUATION]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import gpuops
from tests.nights.gated.checkers import violations as gated_violations
from tests.nights.gated.night import play as play_gated
from tests.nights.judging.checkers import violations
from tests.nights.playing.night import Nightly
from tests.nights.playing.soap import SoapNightly
from tests.nights.situations.situations import SITUATIONS


def hunt(
    invariant: str, first: int, budget_s: float, said_of: Callable[[int], list[str]], step: int = 2
) -> dict[str, Any]:
    """Nights played, seconds of one core, what the checker said (None: nothing), and what else was seen on the way."""
    began, nights, other_invariants = time.process_time(), 0, set()
    for seed in count(first, step):
        if time.process_time() - began > budget_s:
            break
        nights += 1
        try:
            problems = said_of(seed)
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        named = [problem for problem in problems if problem.partition(":")[0] == invariant]
        if named:
            return {"seed": seed, "nights": nights, "seconds": time.process_time() - began, "said": named[0]}
        other_invariants |= {problem.partition(":")[0] for problem in problems}
    return {
        "seed": None,
        "nights": nights,
        "seconds": time.process_time() - began,
        "said": None,
        "others": sorted(other_invariants),
    }


def violations_in(seed: int, kinds: Sequence[str]) -> list[str]:
    """Return what the checkers report about the night of this seed; `kinds` as in the command."""
    if "gated" in kinds:
        return gated_violations(play_gated(seed))
    situated = next((SITUATIONS[kind] for kind in kinds if kind in SITUATIONS), None)
    if situated is None:
        night = (SoapNightly if "soap" in kinds else Nightly)(seed, () if "quiet" in kinds else None)
    elif "soap" in kinds:
        night = type(situated.__name__, (situated, SoapNightly), {})(seed)
    else:
        night = situated(seed)
    return violations(night.play())


if __name__ == "__main__":
    named, beginning, seconds, *kinds = sys.argv[1:]
    step = 1 if "gated" in kinds else 2
    outcome = hunt(named, int(beginning), float(seconds), lambda seed: violations_in(seed, kinds), step)
    print(json.dumps({**outcome, "engine": gpuops.__file__}))
