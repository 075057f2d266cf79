"""Makes a simulated vCenter break rules of the table of assumptions (`gpuops/catalog/assumptions.yaml`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

import yaml

from gpuops.catalog.catalog_files import assumptions
from gpuops.errors import UsageError
from gpuops.sim.fault_injection.rule import Rule
from gpuops.sim.state.gpu_admission import GpuOrder, StartOrder, VgpuPolicy

if TYPE_CHECKING:
    from gpuops.sim.world import World


def deviate(world: World, ids: Iterable[str]) -> None:
    """Add these deviations to the simulated vCenter. Raises UsageError, before any change, for an unknown id."""
    ids = tuple(ids)
    deviating_ids = [row.id for row in assumptions().values() if row.deviation]
    for id in ids:
        if id not in deviating_ids:
            raise UsageError(f"no deviation is called {id!r}", hint=f"use one of: {', '.join(deviating_ids)}")
    text = files("gpuops.sim.fault_injection").joinpath("deviations.yaml").read_text(encoding="utf-8")
    rules = yaml.safe_load(text)
    for id in ids:
        world.deviations.add(id)
        for rule in rules.get(id, ()):
            world.injector.add(Rule.from_json(rule))
    if "busy-vm-fault" in world.deviations:  # assumption: busy-vm-fault
        world.tasks.queues = False
        world.tasks.hides_busy_tasks = True
    for host in world.by_type("HostSystem"):
        if "gpu-choice" in world.deviations:  # assumption: gpu-choice
            # the other policy's choice: performance takes the emptiest GPU, consolidation the fullest
            is_performance = host.state.policy is VgpuPolicy.PERFORMANCE
            order = GpuOrder.FULLEST if is_performance else GpuOrder.EMPTIEST
            host.state.deviation = replace(host.state.deviation, gpus=order)
        if "gpu-instance-start" in world.deviations:  # assumption: gpu-instance-start
            host.state.deviation = replace(host.state.deviation, starts=StartOrder.HIGHEST)
