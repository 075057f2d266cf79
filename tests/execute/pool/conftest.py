"""Where the books of these tests are kept: a file, or a PostgreSQL that the tests start."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def book_place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """State directory and URL."""
    url = request.getfixturevalue("postgresql").database() if request.param == "postgresql" else ""
    return tmp_path / "state", url
