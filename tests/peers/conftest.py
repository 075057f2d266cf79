"""The peers as fixtures: govc for any vCenter, vcsim loaded with the GPU inventory, and our own `lab` for govc."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.sim.server import SimServer, start
from tests.peers import over_json
from tests.peers.processes import BINARIES, Endpoint, Govc, running_vcsim, save_gpu_inventory

WIRES = ("soap", "json")


def built() -> None:
    """Fail in CI, where `make peers` builds them first; skip elsewhere, saying what to type."""
    missing = [name for name in ("govc", "vcsim") if not (BINARIES / name).exists()]
    if not missing:
        return
    message = f"{' and '.join(missing)} not built: type `make peers` (needs Go)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def govc(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Endpoint], Govc]:
    """govc for the vCenter of one's choice: `govc(endpoint)("about")`."""
    built()
    home = tmp_path_factory.mktemp("govc-home")
    return lambda endpoint: Govc(endpoint, home)


@pytest.fixture(scope="session")
def gpu_inventory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inventory of `gpu_model.py`, in files that vcsim loads."""
    built()
    return save_gpu_inventory(tmp_path_factory.mktemp("gpu-inventory"))


@pytest.fixture
def vcsim(gpu_inventory: Path, tmp_path: Path) -> Iterator[Endpoint]:
    """A vcsim of the test's own with the GPU inventory, to change at will."""
    with running_vcsim(tmp_path, f"-load={gpu_inventory}") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def shared_vcsim(gpu_inventory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A vcsim with the GPU inventory that tests only read."""
    with running_vcsim(tmp_path_factory.mktemp("vcsim"), f"-load={gpu_inventory}") as endpoint:
        yield endpoint


def _serve_simulated() -> Iterator[SimServer]:
    with start("lab") as server:
        yield server
    assert server.world.bugs == []


def _endpoint(server: SimServer) -> Endpoint:
    assert server.ca_file is not None
    return Endpoint(server.url, server.username, server.password, Path(server.ca_file))


@pytest.fixture
def lab() -> Iterator[SimServer]:
    """Our simulated vCenter with the scenario `lab`, over TLS, to change at will."""
    yield from _serve_simulated()


@pytest.fixture(params=WIRES)
def ask(lab: SimServer, govc: Callable[[Endpoint], Govc], request: pytest.FixtureRequest) -> Govc:
    """govc for the test's own `lab`, over SOAP and over VI/JSON."""
    return replace(govc(_endpoint(lab)), over_json=request.param == "json")


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[SimServer]:
    """A `lab` that tests only read."""
    yield from _serve_simulated()


@pytest.fixture(scope="session", params=WIRES)
def read(shared_lab: SimServer, govc: Callable[[Endpoint], Govc], request: pytest.FixtureRequest) -> Govc:
    """govc for the `lab` that tests only read, over SOAP and over VI/JSON."""
    return replace(govc(_endpoint(shared_lab)), over_json=request.param == "json")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What govc cannot do over VI/JSON fails there; where it does not, the list is wrong."""
    for item in items:
        name, _, parameters = item.name.partition("[")
        if name in over_json.TESTS and "json" in parameters.rstrip("]").split("-"):
            item.add_marker(pytest.mark.xfail(reason=over_json.TESTS[name], strict=True))
