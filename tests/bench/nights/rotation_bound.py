"""What no plan can pass that is in time in a slow morning: a bound of its own, beside that of the product.

A plan is made once. If it is in time when resumes take `margin` times as long, then the last `k` GPUs to be given back
have `k` times their desktops still to resume, on so many lanes, each for that long, before the night ends. So the k-th
last of them cannot be given back later than that staircase says, per host and on the one datastore: whatever the order,
and whatever the jobs are. Before its last desktop is idle and suspended no GPU is free. Nothing of the product is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.bench.nights.rotation_nights import ENDS, Night


def most_gpu_hours(night: Night, margin: float) -> float:
    """GPU-hours: the least of what the hosts' lanes leave, what the datastore's leave, and all jobs."""
    size, takes = night.size, math.ceil(night.size.move_minutes * margin - 1e-9)
    ready = [int(at) + size.move_minutes for at in night.ready]
    of_hosts = [ready[first : first + size.gpus_per_host] for first in range(0, size.gpus, size.gpus_per_host)]
    by_host = sum(_windows(each, size.desktops_per_gpu, size.per_host, takes) for each in of_hosts)
    by_store = _windows(ready, size.desktops_per_gpu, size.per_datastore, takes)
    return min(by_host / 60, by_store / 60, night.gpu_hours)


def _windows(ready: Sequence[int], desktops: int, lanes: int, takes: int) -> int:
    """Minutes of the best number of GPUs: the first to be free, each given back as late as the staircase lets it."""
    best = total = 0
    for given_back, free_from in enumerate(sorted(at for at in ready if at < ENDS), 1):
        total += ENDS - math.ceil(given_back * desktops / lanes) * takes - free_from
        best = max(best, total)
    return best
