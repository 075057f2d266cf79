"""Figures always carry their unit, and unknown is said, never zero."""

from __future__ import annotations

import pytest

from gpuops.report.text import count, duration, size


@pytest.mark.parametrize(
    ("mib", "text"), [(None, "unknown"), (0, "0 MiB"), (512, "512 MiB"), (1536, "1.5 GiB"), (65536, "64 GiB")]
)
def test_size(mib: float | None, text: str) -> None:
    assert size(mib) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 00 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_count() -> None:
    assert (count(1, "host"), count(0, "host"), count(2, "host")) == ("1 host", "0 hosts", "2 hosts")
