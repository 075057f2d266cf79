"""Plugin: every test begins at one moment, in one zone and locale; so do the processes that it starts.

The seed of everything that a run draws (surroundings, the examples of hypothesis, worlds) is that of `--surroundings`,
else that of the variable SURROUNDINGS_SEED, else 0, for which nothing is drawn. It is printed.
"""

from __future__ import annotations

import locale
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpuops.clock import machine_time, set_ahead
from tests.surroundings.draw import FIXED, Surroundings, drawn, locales_here

HERE = pytest.StashKey[Surroundings]()
CHILD = Path(__file__).parent / "child"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--surroundings", type=int, metavar="SEED", help="draw what this seed draws")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The controller draws and passes the seed to its workers, before hypothesis reads its own."""
    seed_of_worker = getattr(config, "workerinput", {}).get("surroundings")
    seed = seed_of_worker if seed_of_worker is not None else config.getoption("--surroundings")
    if seed is None:
        seed = int(os.environ.get("SURROUNDINGS_SEED") or FIXED.seed)
    drawn_surroundings = drawn(seed, locales_here())
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed)
    config.stash[HERE] = drawn_surroundings
    os.environ.update(
        {
            "TZ": drawn_surroundings.zone,
            "LC_ALL": drawn_surroundings.locale,
            "SURROUNDINGS_SEED": str(drawn_surroundings.seed),
        }
    )
    time.tzset()
    locale.setlocale(locale.LC_ALL, "")
    earlier = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(CHILD))]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CHILD), *earlier])
    move_to(drawn_surroundings)


def pytest_report_header(config: pytest.Config) -> str:
    return f"surroundings: {config.stash[HERE]}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """To a worker of pytest-xdist: the seed of all."""
    node.workerinput["surroundings"] = node.config.stash[HERE].seed


def pytest_runtest_setup(item: pytest.Item) -> None:
    move_to(item.config.stash[HERE])


def move_to(surroundings: Surroundings) -> None:
    """It is that moment now; a test that fails at a moment fails there whatever ran before it."""
    ahead = surroundings.moment - machine_time()
    set_ahead(ahead)
    os.environ["SURROUNDINGS_AHEAD_S"] = str(ahead.total_seconds())
