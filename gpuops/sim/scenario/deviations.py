"""Makes a simulated vCenter go by other rules than those of the table of assumptions (`gpuops/catalog`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

import yaml

from gpuops.catalog.assumptions import assumptions
from gpuops.errors import UsageError
from gpuops.sim.fault_injection.rule import Rule
from gpuops.sim.state.gpu_admission import GpuOrder, StartOrder, VgpuPolicy

if TYPE_CHECKING:
    from gpuops.sim.world import World


def deviate(world: World, ids: Iterable[str]) -> None:
    """Apply these deviations from now on. Raises UsageError for an id without a deviation."""
    known = [row.id for row in assumptions().values() if row.deviation]
    text = files("gpuops.sim.fault_injection").joinpath("deviations.yaml").read_text(encoding="utf-8")
    rules = yaml.safe_load(text)
    for id in ids:
        if id not in known:
            raise UsageError(f"no deviation is called {id!r}", hint=f"there are: {', '.join(known)}")
        world.deviations.add(id)
        for rule in rules.get(id, ()):
            world.injector.add(Rule.from_json(rule))
    for host in world.by_type("HostSystem"):
        if "gpu-choice" in world.deviations:  # assumption: gpu-choice
            fills = host.state.policy is VgpuPolicy.PERFORMANCE
            host.state.deviation = replace(host.state.deviation, gpus=GpuOrder.FULLEST if fills else GpuOrder.EMPTIEST)
        if "gpu-instance-start" in world.deviations:  # assumption: gpu-instance-start
            host.state.deviation = replace(host.state.deviation, starts=StartOrder.HIGHEST)
