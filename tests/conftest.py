"""What several floors' tests share: golden text, refreshed by one flag and reviewed as a diff; no property is timed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.surroundings.plugin"]
collect_ignore = ["example_project"]
"""A project of others: `tests/sim/test_pytest_plugin.py` runs its tests as they would."""

settings.register_profile("gpuops", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpuops")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write the golden files anew instead of comparing")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: garbage collection skips it, in forked processes too."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares with a file beside the test; `--refresh-golden` writes it anew, to be reviewed as a diff."""

    def compare(name: str, text: str) -> None:
        path = Path(str(request.path)).parent / "golden" / name
        if request.config.getoption("--refresh-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"pytest {request.node.nodeid} --refresh-golden renews {name}"

    return compare
