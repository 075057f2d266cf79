"""Standard networking of a host through the wire: switches, port groups, VMkernel adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim

from gpuops.sim.server import SimServer, start
from tests.sim.lab import connect


@pytest.fixture
def lab() -> Iterator[SimServer]:
    with start("lab", tls=False, clock="stepped") as server:
        yield server
    assert server.world.bugs == []


@pytest.fixture
def hosts(lab: SimServer) -> Iterator[list[Any]]:
    si = connect(lab)
    yield [vim.HostSystem(host.moid, si._stub) for host in lab.world.by_type("HostSystem")]
    Disconnect(si)


def test_a_host_shows_its_running_stack(hosts: list[Any]) -> None:
    (running,) = hosts[0].runtime.networkRuntimeInfo.netStackInstanceRuntimeInfo
    assert (running.netStackInstanceKey, running.state) == (hosts[0].config.network.netStackInstance[0].key, "active")
