"""The scenario `vdi` and its Connection Server, served; no user logs in unless a test makes one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.model.vcenter.target import BrokerTarget
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.wire.conftest import target_of
from tests.wire.nights.gated.gates import Gated


@pytest.fixture
def vdi(tmp_path: Path) -> Iterator[Gated]:
    world = build("vdi")
    world.desktop_pools = tuple(replace(pool, logins_per_hour=0.0) for pool in world.desktop_pools)
    with SimServer(world) as server:
        served = server.serve_horizon()
        target = BrokerTarget(replace(target_of(server), port=served.port, username=served.username), served.domain)
        yield Gated(server, served.pod, target, tmp_path / "state")
        assert world.bugs == []
