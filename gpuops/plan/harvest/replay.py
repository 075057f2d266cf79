"""Replay: a schedule in a world where suspends and resumes take another time than was thought.

The lanes are those of the plan. A resume begins at its planned start, or as soon after it as lanes are free; in the
order of the plan. A morning does not wait for jobs: what still runs when its GPU is due is stopped.
"""

from __future__ import annotations

import math

from gpuops.plan.harvest.lanes import Lanes
from gpuops.plan.harvest.problem import Problem
from gpuops.plan.harvest.schedule import Schedule


def back_at(problem: Problem, found: Schedule, slower: float) -> dict[str, int]:
    """When each desktop runs again if a resume takes `slower` times what `Desktop.resume_minutes` says."""
    desktops = {desktop.name: desktop for gpu in problem.gpus for desktop in gpu.desktops}
    most = max((desktop.resume_minutes for desktop in desktops.values()), default=0)
    # However slow, one after the other all of them come back some time.
    lanes = Lanes(problem.limits, problem.ends + math.ceil(most * slower) * (len(found.resumes) + 1))
    for move in found.suspends:
        lanes.first(move.host, desktops[move.desktop], move.start, move.minutes)
    back = {}
    for move in found.resumes:
        minutes = math.ceil(desktops[move.desktop].resume_minutes * slower - 1e-9)
        start = lanes.first(move.host, desktops[move.desktop], move.start, minutes)
        assert start is not None
        back[move.desktop] = start + minutes
    return back


def late(problem: Problem, found: Schedule, slower: float) -> list[str]:
    """The desktops that are not back when the night ends."""
    return sorted(name for name, at in back_at(problem, found, slower).items() if at > problem.ends)
