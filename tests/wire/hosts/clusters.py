"""A cluster of like hosts with work on them and room for one host's VMs, on a simulated vCenter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.world import World
from tests.harness import office

START: Final = datetime(2026, 11, 7, 21, 30, tzinfo=UTC)
"""A Saturday evening."""

ADDRESSES: Final = ("0000:3b:00.0", "0000:af:00.0")
DESKTOP: Final = "nvidia_a40-8q"


def cluster(
    hosts: int,
    vms: Sequence[dict[str, Any]],
    *,
    drs: str = "manual",
    hot_migrate: bool = True,
    gpus: int = 1,
    in_directpath: Sequence[str] = (),
    board: str = "a40",
    mode: str = "sameSize",
    api_version: str | None = None,
    **options: Any,
) -> World:
    """`hosts` like hosts esx-01... of so many GPUs each, those `given` for DirectPath I/O, and these VMs.

    `more` is declared of the cluster.
    """
    gpu_keys = [office.gpu(at, board=board, mode=mode, passthrough=at in in_directpath) for at in ADDRESSES[:gpus]]
    declared = office.scenario(
        vms,
        start=START,
        api_version=api_version,
        options={"vgpu.hotmigrate.enabled": hot_migrate},
        clusters=[{"name": "c", "drs": drs, **options, "hosts": [office.hosts(hosts, gpus=gpu_keys)]}],
    )
    return build_declared(ScenarioFile.of(declared))


def desktops(host: int, count: int, *, first: int, **options: Any) -> dict[str, Any]:
    """Running desktops on one host."""
    numbered = {"name": "vdi-{:03}", "first": first, "count": count, "cpu_usage_mhz": 900, "attributes": {}}
    return office.desktop(first, f"esx-{host:02}", **numbered | options)
