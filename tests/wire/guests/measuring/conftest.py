"""The host with a free A40, served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.sim.server import start
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.guests.measuring.lab import SCENARIO, Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with (
        start(SCENARIO, clock="virtual") as server,
        Connection(replace(target_of(server), guest=GuestLogin("ml", Secret("Kept4now")))) as connection,
    ):
        yield Lab(server, Site(connection, tmp_path / "state", wall_clock))
        assert server.world.bugs == []
