"""Hunt: nights under the engine that is first on the path, until a checker names the invariant; told as JSON.

python -m tests.mutants.hunt INVARIANT FIRST SECONDS [quiet] [soap]
"""

from __future__ import annotations

import json
import sys
import time
from itertools import count
from typing import Any

import gpuops
from tests.nights.checkers import violations
from tests.nights.night import Nightly
from tests.nights.soap import SoapNightly


def hunt(invariant: str, first: int, budget_s: float, *, quiet: bool, soap: bool) -> dict[str, Any]:
    """Nights played, seconds of one core, what the checker said (None: nothing), and what else was seen on the way."""
    kind: type[Nightly] = SoapNightly if soap else Nightly
    began, nights, others = time.process_time(), 0, set()
    for seed in count(first, 2):
        if time.process_time() - began > budget_s:
            break
        nights += 1
        try:
            said = violations(kind(seed, () if quiet else None).play())
        except Exception as error:
            said = [f"{type(error).__name__}: {error}"]
        named = [each for each in said if each.partition(":")[0] == invariant]
        if named:
            return {"seed": seed, "nights": nights, "seconds": time.process_time() - began, "said": named[0]}
        others |= {each.partition(":")[0] for each in said}
    return {
        "seed": None,
        "nights": nights,
        "seconds": time.process_time() - began,
        "said": None,
        "others": sorted(others),
    }


if __name__ == "__main__":
    named, beginning, seconds, *kinds = sys.argv[1:]
    found = hunt(named, int(beginning), float(seconds), quiet="quiet" in kinds, soap="soap" in kinds)
    print(json.dumps({**found, "engine": gpuops.__file__}))
