"""The executor: what a step of a big night, and of its morning, costs the engine itself, beside vCenter and the disk.

The engine is the one that runs, with its journal on disk; the vCenter is the simulator's objects, called without a wire
on virtual time. CPU time spent in them is taken away, so what is left is looking, deciding, writing intents, waiting.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from gpuops.config.policy import parse_policy
from gpuops.execute.rotation import rotation_run
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.steps.plan_executor import execute
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import SetAttribute
from gpuops.sim.world import World
from tests.bench.measure import python
from tests.bench.verdict import Figure, Result
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.worlds import EVENING, Size, site_of

SIZE: Final = Size(hosts=60, desktops=500, ml=60)
SEED: Final = 7
OWN_MS: Final = 5.0


def run() -> Result:
    """The night and its morning, in a process of its own."""
    said = python("executor", "-m", "tests.bench.changes.executor", "said").run().said
    return Result(
        f"executor: {SIZE.desktops} desktops, {SIZE.ml} ML VMs, {SIZE.hosts} hosts",
        tuple(figure for half in ("night", "morning") for figure in _figures(half, said[half])),
    )


def _figures(half: str, said: dict[str, float]) -> tuple[Figure, ...]:
    return (
        Figure(f"{half}: steps", said["steps"], ""),
        Figure(f"{half}: of them not markers", said["effects"], ""),
        Figure(f"{half}: steps that are not done", said["not_done"], "", 0),
        Figure(f"{half}: the executor's own CPU time per step", said["own_ms"], "ms", OWN_MS),
        Figure(f"{half}: the simulator's CPU time per step", said["vcenter_ms"], "ms"),
    )


class Timed:
    """A vCenter that counts the CPU seconds spent in it."""

    def __init__(self, vcenter: DirectVcenter) -> None:
        self._vcenter = vcenter
        self.spent_s = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._vcenter, name)
        return self._counted(found) if callable(found) else found

    def wait(self, *arguments: Any) -> Any:
        ends = self._vcenter.wait(*arguments)
        while (end := self._counted(next)(ends, None)) is not None:
            yield end

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            began = time.process_time()
            try:
                return call(*arguments)
            finally:
                self.spent_s += time.process_time() - began

        return counted


def half_of(half: RunKind, world: World, policy: Any, state_dir: Path) -> dict[str, float]:
    """What one half comes to."""
    vcenter = Timed(DirectVcenter(world, lambda point: None))
    spent = {}

    def timed(*arguments: Any, **named: Any) -> Any:
        began, in_vcenter = time.process_time(), vcenter.spent_s
        outcomes = execute(*arguments, **named)
        spent["vcenter"] = vcenter.spent_s - in_vcenter
        spent["own"] = time.process_time() - began - spent["vcenter"]
        return outcomes

    site = Site(vcenter, state_dir, world.clock.now)
    site.passed_s = lambda: (world.clock.now() - EVENING).total_seconds()
    with patch.object(rotation_run, "execute", timed):
        report: Report = rotate(half, policy, site, apply=True, consent=agreed)
    steps = len(report.outcomes)
    return {
        "steps": steps,
        "effects": sum(1 for outcome in report.outcomes if not isinstance(outcome.step, SetAttribute)),
        "not_done": sum(1 for outcome in report.outcomes if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)),
        "own_ms": 1000 * spent["own"] / steps,
        "vcenter_ms": 1000 * spent["vcenter"] / steps,
    }


def main() -> None:
    """Play both; what was measured as JSON."""
    site = site_of(SEED, SIZE)
    # the morning asks the policy that its night has written down, so the text says it
    said = json.loads(site.policy.text)
    said["ml"]["stop"] = {"grace_s": 120, "then": "power-off"}
    said["limits"] = {"in_flight": 32, "per_host": 4}
    policy = parse_policy(json.dumps(said), "night")
    world = site.world(SEED)
    with world.lock, tempfile.TemporaryDirectory() as folder:
        found = {
            name: half_of(half, world, policy, Path(folder))
            for name, half in (("night", RunKind.NIGHT), ("morning", RunKind.DAY))
        }
    print(json.dumps(found))


if __name__ == "__main__" and sys.argv[1:]:
    main()
