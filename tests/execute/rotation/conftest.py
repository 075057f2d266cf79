"""The small vCenter before a night, and a state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.execute.nights import Night


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path / "state")
