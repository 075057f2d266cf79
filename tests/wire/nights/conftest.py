"""The scenario `lab` as nights play it over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuops.config.policy import load_policy
from gpuops.sim.server import SimServer

if TYPE_CHECKING:
    from tests.wire.nights.test_rotation import Wire


@pytest.fixture
def lab_wire(lab: SimServer, tmp_path: Path) -> Iterator[Wire]:
    """Rotations by the policy of `lab`, whose commands take it too. Whatever they advise gets somewhere."""
    from tests.wire.nights.test_rotation import LAB_POLICY, Wire

    wire = Wire(lab, tmp_path / "state", load_policy(LAB_POLICY), ("rotate", "--policy", str(LAB_POLICY)))
    yield wire
    assert wire.aside.wrong == []


@pytest.fixture
def wire(lab_wire: Wire) -> Wire:
    return lab_wire
