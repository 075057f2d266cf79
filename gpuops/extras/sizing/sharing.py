"""How much longer VMs take that share one GPU's time, by the share of it that each uses alone. Pure.

A VM alone keeps the GPU busy for a share `u` of the time, and does something else meanwhile for 1 - u. Its slowdown is
how long the same work takes beside others: 1 = as long as alone. Its throughput is 1 / slowdown.

* Best effort gives the GPU's time to any VM that asks. That is a closed queueing network: one station that shares
  itself among the VMs that are there (the GPU), one without waiting (all else), and each VM a class with one customer.
  Such a network has a product form (Baskett, Chandy, Muntz, Palacios 1975), for which only the means count, not how
  long single bursts are. Of k VMs that are there together the GPU does less than of one, for it changes from one to the
  next: with c for `SWITCHING_OVERHEAD` it works at the rate 1 / (1 + c) from k = 2 on, which leaves the product form.
  With `G` its normalising constant, VM i does its work at the rate G(without i) / G(all):

      (1 + c) * G = c * e_0 + sum over k of k! * (1 + c)^k * e_k
                  = c * product over j of (1 - u_j)
                    + integral over t >= 0 of exp(-t) * product over j of ((1 - u_j) + u_j * (1 + c) * t)

  e_k: the coefficient of t^k in the product of (1 - u_j) + u_j * t. That has the degree n, and so Gauss-Laguerre
  quadrature with n // 2 + 1 nodes is exact; all terms are positive, and nothing cancels.
  Two VMs: G = 1 + u_1 * u_2 * (1 + 2 c), the slowdown of both.
* Equal share gives each running vGPU the same part, used or not: the GPU's part of the work takes n times as long.
* Fixed share gives each vGPU one part of as many as the GPU holds of its type: `slots` times as long, whoever runs.

(NVIDIA vGPU docs, scheduling policies, for who gets what.) Under these two as well it changes from one VM to the next
where more than one runs. What VMs take from each other beside time, such as memory bandwidth, is not in it: `pairs`
measures that.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.devices.scheduler import SchedulerPolicy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SWITCHING_OVERHEAD: Final = 0.09
"""How much longer the same GPU work takes where the GPU changes between VMs: measured on an H100 with processes that
shared it (`tests/bench/shared_gpu`), 0.04 with bursts of 2 ms. An H200, measured afterwards, fits best with the same
number. What VMware published fits with it, and without."""

MOST_SHARERS: Final = 64
"""More vGPUs than any GPU holds; up to there the quadrature is exact to ten digits."""


def slowdowns(policy: SchedulerPolicy, busy: Floats, slots: int) -> Floats:
    """Return how many times as long as alone each VM takes.

    `busy`: in its last dimension the busy shares of the VMs of one GPU, each 0 to 1; NaN = the VM does not run. The
    result has the same shape, and NaN at the same places. `slots`: how many vGPUs of their type the GPU holds.
    """
    match policy:
        case SchedulerPolicy.BEST_EFFORT:
            return best_effort(busy, SWITCHING_OVERHEAD)
        case SchedulerPolicy.EQUAL_SHARE:
            running = _running_vms(busy)
            return 1.0 + busy * (running * np.where(running > 1, 1.0 + SWITCHING_OVERHEAD, 1.0) - 1.0)
        case SchedulerPolicy.FIXED_SHARE:
            return 1.0 + busy * (slots * np.where(_running_vms(busy) > 1, 1.0 + SWITCHING_OVERHEAD, 1.0) - 1.0)


def best_effort(busy: Floats, switching: float = 0.0) -> Floats:
    """Return `slowdowns` under best effort. VMs that do not run or never ask for the GPU slow no other one down."""
    nodes, weights = _quadrature(busy.shape[-1] // 2 + 1)
    asks = np.minimum(np.nan_to_num(busy), _ALMOST_ALWAYS_BUSY)[..., np.newaxis]
    factors = (1.0 - asks) + asks * (1.0 + switching) * nodes
    whole = factors.prod(axis=-2, keepdims=True)
    idle = 1.0 - asks[..., 0]
    unused = switching * idle.prod(axis=-1, keepdims=True)
    slowdown = (whole @ weights + unused) / ((whole / factors) @ weights + unused / idle)
    return np.where(np.isnan(busy), np.nan, np.maximum(slowdown, 1.0))


_ALMOST_ALWAYS_BUSY: Final = 1.0 - 1e-12
"""One that always asks is idle so little that what it is divided by is not 0."""


def pairwise_slowdowns(busy: Floats) -> Floats:
    """Return what each of these VMs (rows) takes beside one other of them (columns) under best effort."""
    return 1.0 + (1.0 + 2.0 * SWITCHING_OVERHEAD) * np.outer(busy, busy)


def _running_vms(busy: Floats) -> Floats:
    running: Floats = (~np.isnan(busy)).sum(axis=-1, keepdims=True).astype(float)
    return running


def alone(used: Floats, rounds: int = 200) -> Floats:
    """Return the busy shares that VMs would have alone, from their measured use of a GPU shared under best effort.

    A VM with the busy share u uses a shared GPU for u / slowdown of the time. The smallest u that explain the use of
    all VMs together are found from below, u = used * slowdown(u), where each round can only raise them. If the GPU was
    full, larger u up to 1 explain the same use; the smallest is what the VMs needed at least. Shapes as in `slowdowns`.

    `SWITCHING_OVERHEAD` is left out: while a GPU changes between VMs it counts as used, nvidia-smi reports 100 %.
    """
    busy = np.minimum(used, 1.0)
    for _ in range(rounds):
        next_busy = np.minimum(used * best_effort(busy), 1.0)
        if np.nanmax(next_busy - busy, initial=0.0) < _CONVERGED:
            return next_busy
        busy = next_busy
    return busy


_CONVERGED: Final = 1e-4


def staggered_slowdowns(policy: SchedulerPolicy, busy: float, sharers: int, slots: int, overlap: float) -> Floats:
    """Return the slowdown of each of `sharers` equal VMs that begin one after another.

    Each runs next to the following one for the share `overlap` of its work: 1 = all begin together, 0 = each begins
    when the one before ends. The VM m places later begins when this one has done m * (1 - overlap) of its work. Three
    VMs with an overlap of a quarter: the first and the last run next to one other VM for a quarter of their work, the
    middle one for two quarters.
    """
    by_running = [float(slowdowns(policy, np.full(running, busy), slots)[0]) for running in range(1, sharers + 1)]
    apart = 1.0 - overlap
    times = []
    for place in range(sharers):
        later = [m * apart for m in range(1, sharers - place)]  # share of its work at which each later VM begins
        earlier = [1.0 - m * apart for m in range(1, place + 1)]  # and at which each earlier VM ends
        cuts = sorted({0.0, 1.0, *(cut for cut in (*later, *earlier) if 0.0 < cut < 1.0)})
        took = 0.0
        for begin, end in pairwise(cuts):
            middle = (begin + end) / 2
            running = 1 + sum(middle > cut for cut in later) + sum(middle < cut for cut in earlier)
            took += (end - begin) * by_running[running - 1]
        times.append(took)
    return np.array(times)


@cache
def _quadrature(nodes: int) -> tuple[Floats, Floats]:
    places, weights = np.polynomial.laguerre.laggauss(nodes)
    return places, weights
