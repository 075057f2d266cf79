"""The catalogue of faults, each as a real client meets it: pyVmomi where a call is meant, bare TLS where the wire is.

A function per id, called `sees_<id>`, in the module of its kind; the first test says so of every id in the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuops.sim.fault_injection.rule import catalogue
from tests.sim.lab import Lab
from tests.sim.wire.faults import clusters, gpus, sessions, tasks, transport, vms

CASES: dict[str, Callable[[Lab], None]] = {
    name.removeprefix("sees_"): case
    for module in (transport, sessions, tasks, vms, gpus, clusters)
    for name, case in vars(module).items()
    if name.startswith("sees_")
}


def test_every_fault_of_the_catalogue_is_seen_by_a_client() -> None:
    assert sorted(CASES) == sorted(catalogue())


@pytest.mark.parametrize("fault", catalogue())
def test_a_client_sees(fault: str, lab: Lab) -> None:
    CASES[fault](lab)
    assert all(struck for _, struck in lab.world.injector.struck())
