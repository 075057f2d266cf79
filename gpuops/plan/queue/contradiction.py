"""Contradictions: wishes that no fleet could fulfil, whatever room it has; said first, and without a list of hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuops.model.inventory import Inventory
from gpuops.model.workload import Workload
from gpuops.plan.core.plan import Rejection
from gpuops.plan.queue.eligible_hosts import scope_of


def contradictions(unit: Sequence[Workload], inventory: Inventory) -> tuple[Rejection, ...]:
    """What contradicts itself among workloads of one affinity; nothing for one alone."""
    return tuple(_of(unit, inventory)) if len(unit) > 1 else ()


def _of(unit: Sequence[Workload], inventory: Inventory) -> Iterator[Rejection]:
    affinity = unit[0].affinity
    apart: dict[str, list[str]] = {}
    for workload in unit:
        if workload.anti_affinity is not None:
            apart.setdefault(workload.anti_affinity, []).append(workload.name)
    for word, names in apart.items():
        if len(names) > 1:
            rule = f"affinity {affinity} and anti-affinity {word} contradict each other for {', '.join(names)}"
            yield Rejection(names[0], rule, hint="give them one of the two words")
    hosts = [{host.ref for host in scope_of(workload).hosts(inventory)} for workload in unit]
    if all(hosts) and not set.intersection(*hosts):
        everybody = ", ".join(workload.name for workload in unit)
        rule = f"affinity {affinity} wants one host for {everybody}, and no host is meant by all of them"
        yield Rejection(unit[0].name, rule, hint="ask for the same hosts in each of them")
