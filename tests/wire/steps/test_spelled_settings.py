"""Settings that a client wrote with other capital letters: they are the same to ESXi, and to gpuops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.api import Site, run
from gpuops.clock import wall_clock
from gpuops.plan.core.plan import Verdict
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

VM, ADDRESS = "ml-03", "0000:5e:00.0"


@pytest.fixture
def site(lab: SimServer, tmp_path: Path) -> Iterator[Site]:
    with Connection(target_of(lab)) as connection:
        yield Site(connection, tmp_path, wall_clock)


def write(lab: SimServer, size_gib: int) -> None:
    vm = next(vm for vm in lab.world.by_type("VirtualMachine") if vm.name == VM)
    vm.state.extra_config = (("pcipassthru.64bitMMIOsizegb", str(size_gib)), ("pciPassthru.use64BitMMIO", "True"))


def settings(lab: SimServer) -> dict[str, str]:
    vm = next(vm for vm in lab.world.by_type("VirtualMachine") if vm.name == VM)
    return {key.lower(): value for key, value in vm.state.extra_config if "MMIO" in key}


def test_settings_that_suffice_are_not_written_again(lab: SimServer, site: Site) -> None:
    write(lab, 128)
    report = run(Attach(VM, device=(ADDRESS,)), site, apply=True)
    assert (report.plan.feasible, report.plan.steps) == (True, ())


@pytest.mark.long
def test_a_size_that_is_too_small_is_replaced_and_restored(lab: SimServer, site: Site) -> None:
    write(lab, 64)
    report = run(Attach(VM, device=(ADDRESS,)), site, apply=True)
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE], report.outcomes
    assert settings(lab) == {"pcipassthru.64bitmmiosizegb": "128", "pcipassthru.use64bitmmio": "True"}
    report = run(Detach(VM, all=True), site, apply=True)
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE], report.outcomes
    assert settings(lab) == {"pcipassthru.64bitmmiosizegb": "64", "pcipassthru.use64bitmmio": "True"}
