"""The limits of the readers hold for each page and grow with the objects asked for: the largest inventory passes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def read(vms: int) -> dict[str, Any]:
    """What a process of its own needed for it."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.wire.reading.large_fleet", str(vms)],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    figures: dict[str, Any] = json.loads(child.stdout)
    return figures


def require_whole(figures: dict[str, Any], vms: int) -> None:
    assert (figures["vms"], figures["with_devices"]) == (vms, vms)
    assert figures["replies"] >= 2 * vms / 250, "the thin pages, and those of the devices"


@pytest.mark.long
def test_two_thousand_vms() -> None:
    require_whole(read(2000), 2000)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_vms() -> None:
    figures = read(100_000)
    require_whole(figures, 100_000)
    assert figures["reply_mib"] > 500
    assert figures["mib"] < 450, "of 760 MiB of replies the VMs are kept, some 3 KB each: no page and no tree"
