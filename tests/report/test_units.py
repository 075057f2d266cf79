"""Figures always carry their unit, and unknown is said, never zero."""

from __future__ import annotations

import pytest

from gpuops.report.text import count, size


@pytest.mark.parametrize(
    ("mib", "text"), [(None, "unknown"), (0, "0 MiB"), (512, "512 MiB"), (1536, "1.5 GiB"), (65536, "64 GiB")]
)
def test_size(mib: float | None, text: str) -> None:
    assert size(mib) == text


def test_count() -> None:
    assert (count(1, "host"), count(0, "host"), count(2, "host")) == ("1 host", "0 hosts", "2 hosts")
