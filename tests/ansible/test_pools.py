"""Tasks about pools of lent GPUs: predicted, changed, unchanged, refused, given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import UsageError
from gpuops.sim.server import start
from gpuops.sim.wire import ready_file
from gpuops.tasks.connection import ConnectionArguments, open_site
from gpuops.tasks.pools import gpu_lease, gpu_pool_info

pytestmark = pytest.mark.long

TEMPLATE = Path(__file__).parents[2] / "templates" / "pool.yaml"
ASKED: dict[str, Any] = {"client": "ml-07", "memory": "8GiB", "lasts": "2h"}


@pytest.fixture
def at(tmp_path: Path) -> Iterator[ConnectionArguments]:
    """The scenario `lab`, with the pool of the template."""
    from gpuops.api import pool_create, run
    from gpuops.config.pool_file import load_pool
    from gpuops.plan.vm.attach import Attach
    from gpuops.plan.vm.power import PowerPolicy

    with start("lab", clock="stepped") as server:
        ready = tmp_path / "ready.json"
        ready_file.write(ready, ready_file.of(server))
        found = ConnectionArguments(hostname=f"sim@{ready}", state_dir=str(tmp_path / "state"))
        site, _ = open_site(found)
        with site:
            for vm, asked in (
                ("ml-03", {"device": ("0000:5e:00.0",)}),
                ("ml-04", {"dynamic": True, "label": "l40s-ml"}),
            ):
                assert run(Attach(vm=vm, power=PowerPolicy.ON, **asked), site, apply=True).exit_code == 0
            assert pool_create(load_pool(TEMPLATE), site, apply=True).exit_code == 0
        yield found


def test_a_lease_is_foreseen_given_left_alone_and_given_back(at: ConnectionArguments) -> None:
    foreseen = gpu_lease(at, present=True, **ASKED, apply=False)
    assert foreseen.result["changed"] and gpu_pool_info(at).result["pools"][0]["leases"] == []
    given = gpu_lease(at, present=True, **ASKED, apply=True)
    assert given.result["diff"] == foreseen.result["diff"]
    assert given.result["diff"][0]["after"] == "1 x 8192 MiB, lent\n"
    assert given.result["lease"]["shares"] == [{"server": "ml-03", "gpu": 0, "memory_mib": 8192}]
    again = gpu_lease(at, present=True, **ASKED, apply=True)
    assert (again.result["changed"], again.result["diff"]) == (False, [])
    assert again.result["lease"]["id"] == given.result["lease"]["id"]
    [pool] = gpu_pool_info(at, pool="lab").result["pools"]
    assert [each["client"] for each in pool["leases"]] == ["ml-07"]
    for apply, changed in ((False, True), (True, True), (True, False)):
        gone = gpu_lease(at, present=False, client="ml-07", apply=apply)
        assert (gone.result["changed"], gone.exit_code, gone.result["lease"]) == (changed, 0, None)
    assert gpu_pool_info(at).result["pools"][0]["leases"] == []


def test_a_vm_that_is_named_by_its_path_gives_back_too(at: ConnectionArguments) -> None:
    gpu_lease(at, present=True, **ASKED, apply=True)
    gone = gpu_lease(at, present=False, client="/lab-dc/vm/ml/ml-07", apply=True)
    assert gone.result["changed"] and gone.result["diff"][0]["before"] == "1 x 8192 MiB, lent\n"


def test_one_that_waits_does_well_and_one_that_may_not_wait_is_refused(at: ConnectionArguments) -> None:
    full = gpu_lease(at, present=True, client="ml-08", memory="40GiB", lasts="2h", gpus=2, apply=True)
    assert full.exit_code == 0, full.message
    refused = gpu_lease(at, present=True, client="ml-07", memory="40GiB", lasts="2h", within="0", apply=True)
    assert refused.exit_code == 3 and refused.result["reasons"] and not refused.result["changed"]
    assert "refused, nothing changed" in refused.message
    waits = gpu_lease(at, present=True, client="ml-07", memory="40GiB", lasts="2h", apply=True)
    assert (waits.exit_code, waits.result["changed"], waits.result["lease"]["state"]) == (0, True, "waiting")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"client": "ml-07"}, "state=present needs memory and lasts"),
        (ASKED | {"memory": "much"}, "much"),
        (ASKED | {"lasts": "long"}, "long"),
        (ASKED | {"gpus": 0}, "cannot be less than 1"),
        (ASKED | {"pool": "other"}, "other"),
        (ASKED | {"client": "nobody"}, "nobody"),
    ],
)
def test_what_means_nothing_is_refused(at: ConnectionArguments, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gpu_lease(at, present=True, **options, apply=True)
