"""Loading the catalogue for the GPUs a fleet has, beside loading all of it: what reading board by board saves.

Six boards are more than most fleets have. The budget is CPU time inside the process, so that the start of the
interpreter, which every command pays anyway, does not hide what the catalogue costs.
"""

from __future__ import annotations

from tests.bench.measure import Contender, interleave, python
from tests.bench.verdict import Figure, Result

ROUNDS = 11
BUDGET_MS = 30.0
PROFILES = (
    "grid_a100-3-20c",
    "nvidia_a40-8q",
    "nvidia_l40s-24q",
    "grid_a100d-80c",
    "nvidia_h100-3-40c",
    "grid_t4-16q",
)

_LOAD = """
import json, time
from gpuops.catalog import load
began = time.process_time()
catalog = load({arguments})
print(json.dumps({{"load_ms": (time.process_time() - began) * 1000, "boards": len(catalog.boards)}}))
"""


def run() -> Result:
    """CPU milliseconds of the first `load()` in a process, the import of the YAML reader included."""
    fleet = _loading("six boards", f"profiles={PROFILES!r}")
    everything = _loading("every board", "everything=True")
    rounds = interleave([fleet, everything], ROUNDS)
    found = {name: [usage.said for usage in usages] for name, usages in rounds.items()}
    # the best of the rounds: another process on the same core can only make a figure worse
    best = {name: min(float(said["load_ms"]) for said in told) for name, told in found.items()}
    return Result(
        "the catalogue",
        (
            Figure(f"first load of {found[fleet.name][0]['boards']} boards", best[fleet.name], "ms CPU", BUDGET_MS),
            Figure(f"first load of all {found[everything.name][0]['boards']} boards", best[everything.name], "ms CPU"),
        ),
        rounds,
    )


def _loading(name: str, arguments: str) -> Contender:
    return python(name, "-c", _LOAD.format(arguments=arguments))
