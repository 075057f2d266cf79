"""Pairs: two or three runs on one vCenter and two machines, whose steps and pauses a seed puts in order.

The enumerated orders of test_two_runners leave each run its speed; here one may stand for longer than its lease, as a
paused virtual machine does, and go on beside the next holder.
"""

from __future__ import annotations

import random
from typing import Final
from unittest.mock import patch

from gpuops.execute.state import lock
from gpuops.plan.rotation.lease import HEARTBEAT_S, TTL_S
from tests.nights.at_once.runners import Machine, Runner, evening, lease_of, strays
from tests.nights.at_once.test_two_runners import by_markers, day, mornings, night
from tests.nights.playing.place import folder_in_memory

PAUSES_S: Final = (1.0, HEARTBEAT_S / 2, HEARTBEAT_S, TTL_S - 1, TTL_S, TTL_S + 1, 2 * TTL_S)
PAUSED: Final = (0.0, 0.04, 0.15)
"""Of all steps, in one night or another."""
LATE: Final = 1
"""Effects that a run may have after its lease changed hands, where it has stood: the one that was past its check."""


def pair_violations(seed: int) -> list[str]:
    """What does not hold of the runs of that seed."""
    rng = random.Random(f"{seed}:pairs")
    with folder_in_memory() as folder, patch.object(lock, "TRIES", 1):
        world, machines = evening(), (Machine(folder / "a"), Machine(folder / "b"))
        acts = [night, rng.choice([night, by_markers]), *rng.sample([day, by_markers, night], rng.randrange(2))]
        runners = [
            Runner(name, world, rng.choice(machines) if number else machines[0], act)
            for number, (name, act) in enumerate(zip("abc", acts, strict=False))
        ]
        paused, pauses = rng.choice(PAUSED), 0
        try:
            while going := [runner for runner in runners if runner.ended is None]:
                runner = rng.choice(going)
                for _ in range(rng.choice((1, 1, 3, 10))):
                    if runner.ended is None:
                        runner.step()
                if rng.random() < paused:
                    pauses += 1
                    with world.lock:
                        world.clock.advance(rng.choice(PAUSES_S))
            most = LATE if pauses else 0
            late = {name: len(entries) for name, entries in strays(world, runners).items() if len(entries) > most}
            lease = lease_of(world)
            problems = [f"I6: {name} had {count} effects while the lease was another's" for name, count in late.items()]
            problems += (
                ["I6: the lease was not given back"] if lease is not None and lease.held_at(world.clock.now()) else []
            )
            if not pauses and all(runner.ended == "Locked" for runner in runners):
                problems.append("I6: each run is blocked by another one, and none acts")
            mornings(world, *machines)
        except AssertionError as wrong:
            return [
                f"I12: the mornings do not bring everything back: {str(wrong).splitlines()[0] if str(wrong) else ''}"
            ]
        finally:
            for runner in runners:
                runner.finish()
    return [*problems, *world.bugs]
