"""One simulated vCenter with unmodified pyVmomi at it, whose bare connections are closed in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sim.lab import Lab, serve_lab
from tests.sim.wire.faults.clients import OPENED

for kind in ("transport", "sessions", "tasks", "vms", "gpus", "clusters"):
    pytest.register_assert_rewrite(f"tests.sim.wire.faults.{kind}")  # an assertion that fails shows its values


@pytest.fixture
def lab() -> Iterator[Lab]:
    with serve_lab() as lab:
        yield lab
    while OPENED:
        OPENED.pop().close()
