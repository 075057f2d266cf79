"""Matching: which of the jobs that take a GPU each, for good, get one, and which GPUs are the cheapest for them.

Jobs are taken in their order, each if those before it can keep a GPU; GPUs likewise, the cheapest first, for the jobs
that were taken. Both greedy choices are the best there are, and one matching has both (transversal matroids; Mendelsohn
and Dulmage 1958).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def matched(jobs: Iterable[int], gpus: Sequence[int], may_run: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Job -> GPU. `jobs` in the order of their right to one, `gpus` the cheapest first."""
    places = set(gpus)
    by_gpu: dict[int, int] = {}
    edges = {job: [gpu for gpu in may_run[job] if gpu in places] for job in jobs}
    taken = [job for job in edges if _augment(job, edges, by_gpu)]
    waiting: dict[int, list[int]] = {gpu: [] for gpu in gpus}
    for job in taken:
        for gpu in edges[job]:
            waiting[gpu].append(job)
    by_job: dict[int, int] = {}
    for gpu in gpus:
        if len(by_job) == len(taken):
            break
        _augment(gpu, waiting, by_job)
    return by_job


def _augment(one: int, edges: Mapping[int, Sequence[int]], partner: dict[int, int]) -> bool:
    """Give it a partner, others changing theirs; False = there is no way. Breadth first, so that few change."""
    came_from: dict[int, int] = {}
    heads = [one]
    for head in heads:
        for other in edges[head]:
            if other in came_from:
                continue
            came_from[other] = head
            if other in partner:
                heads.append(partner[other])
                continue
            _flip(other, one, came_from, partner)
            return True
    return False


def _flip(end: int, first: int, came_from: Mapping[int, int], partner: dict[int, int]) -> None:
    """Along the way that ends here, everyone takes the partner that was found for it."""
    now_of = {head: other for other, head in partner.items()}
    at = end
    while True:
        head = came_from[at]
        before = now_of.get(head)
        partner[at] = head
        if head == first or before is None:
            return
        at = before
