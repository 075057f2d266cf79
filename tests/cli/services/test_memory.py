"""The memory of `gpuops serve` while VMs come and go: by the clock of the day, for minutes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.soak_services import changing_vcenter, memory_mb, service

GROWTH_MB: Final = 3.0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_serve_stays_as_large_as_it_was(tmp_path: Path) -> None:
    """Between its second and its fifth minute. `make soak-services` measures all services for half an hour."""
    with changing_vcenter(tmp_path) as ready, service("serve", ready, tmp_path) as process:
        time.sleep(120.0)
        before = memory_mb(process)
        time.sleep(180.0)
        assert memory_mb(process) - before < GROWTH_MB
