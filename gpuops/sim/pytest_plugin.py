"""The pytest plugin that every installation of gpuops brings: the fixture `simulated_vcenter` and its marker.

pytest loads this module in every run, by the entry point `pytest11`, unless told `-p no:gpuops`. The simulator is
imported when a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from gpuops.sim.server import SimServer

MARKER: Final = "simulated_vcenter"
_OPTIONS: Final = ("scenario", "faults", "clock", "seed", "tls")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `simulated_vcenter`."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(scenario='lab', faults=[], clock='virtual', seed=0, tls=True): what the fixture {MARKER} simulates",
    )


@pytest.fixture
def simulated_vcenter(request: pytest.FixtureRequest) -> Iterator[SimServer]:
    """A simulated vCenter of this test's own, which listens on a free port of 127.0.0.1 until the test ends.

    The nearest marker `simulated_vcenter` says its scenario (a name or a YAML file), its faults (entries as in a fault
    file), what moves its time, its seed, and whether it speaks TLS.
    """
    from gpuops.errors import GpuopsError
    from gpuops.sim.outside_events.fault_file import parse
    from gpuops.sim.server import start

    options = _options(request.node)
    try:
        rules = parse(options.pop("faults", ()), f"the marker {MARKER}")
        server = start(rules=rules, **options)
    except GpuopsError as error:
        pytest.fail("\n".join(filter(None, [error.message, error.hint])), pytrace=False)
    except (TypeError, ValueError) as error:
        pytest.fail(f"the marker {MARKER}: {error}", pytrace=False)
    with server:
        yield server
    if server.world.bugs:
        pytest.fail("\n".join(["the simulated vCenter has a bug of its own:", *server.world.bugs]), pytrace=False)


def _options(test: pytest.Item) -> dict[str, Any]:
    marker = test.get_closest_marker(MARKER)
    if marker is None:
        return {}
    unknown = [*map(repr, marker.args), *sorted(marker.kwargs.keys() - set(_OPTIONS))]
    if unknown:
        pytest.fail(f"the marker {MARKER} takes {', '.join(_OPTIONS)} by name, not {', '.join(unknown)}", pytrace=False)
    return dict(marker.kwargs)
