"""What hosts do with their GPUs, as tasks: predicted, done, and nothing the second time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuops.clock import wall_clock
from gpuops.errors import HostNotFound, Refused, UsageError
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from gpuops.tasks.changes import host_gpu_scheduler, host_graphics_mode, host_passthrough
from gpuops.tasks.perform import TaskResult
from gpuops.tasks.task_connection import ConnectionArguments
from tests.tasks.conftest import Lab
from tests.wire.hosts.clusters import cluster, desktops

pytestmark = pytest.mark.long

Set = Callable[..., TaskResult]
CASES = [
    (
        host_gpu_scheduler,
        {"scheduler": "equal-share", "time_slice": "2ms", "host": "esx-01.lab", "gpu": ["0000:d8:00.0"]},
    ),
    (host_graphics_mode, {"assignment": "performance", "host": "esx-02.lab", "vgpu_mode": None}),
    (host_passthrough, {"state": "disabled", "gpu": ["0000:d8:00.0"], "host": "esx-02.lab"}),
]


@pytest.mark.parametrize(("task", "options"), CASES)
def test_check_mode_predicts_and_the_second_run_does_nothing(lab: Lab, task: Set, options: dict[str, Any]) -> None:
    foreseen = task(lab.said, **options, apply=False)
    assert lab.effects == []
    applied = task(lab.said, **options, apply=True)
    assert (foreseen.exit_code, applied.exit_code) == (0, 0), applied.message
    assert foreseen.result["changed"]
    same = ("changed", "diff", "because", "afterwards", "reasons")
    assert {key: applied.result[key] for key in same} == {key: foreseen.result[key] for key in same}
    assert applied.result["diff"][0]["before"] != applied.result["diff"][0]["after"]
    effects = lab.effects
    assert effects
    repeated = task(lab.said, **options, apply=True)
    assert (repeated.result["changed"], repeated.result["diff"], lab.effects) == (False, [], effects)


def test_modes_of_vsphere_9_1_are_set_by_their_own_call(tmp_path: Path) -> None:
    with SimServer(build("supervisor", api_version="9.1.0.0")) as server:
        path = tmp_path / "ready.json"
        sim_client.write(path, sim_client.of(server))
        lab = Lab(server, ConnectionArguments(hostname=f"sim@{path}"))
        cases: list[tuple[Set, dict[str, Any], int]] = [
            (host_graphics_mode, {"vgpu_mode": "mixedSize", "gpu": ["0000:af:00.0"], "host": "esx-02.sup"}, 0),
            (host_passthrough, {"state": "enabled", "gpu": ["0000:af:00.0"], "host": "esx-02.sup"}, 1),
        ]
        for task, options, later_steps in cases:
            assert task(lab.said, **options, apply=False).result["changed"]
            applied = task(lab.said, **options, apply=True)
            assert (applied.exit_code, len(applied.result["afterwards"])) == (0, later_steps)
            assert not task(lab.said, **options, apply=True).result["changed"]
        assert lab.effects == ["ConfigureDirectPathDevice esx-02.sup"] * 2


def test_a_refusal_has_every_reason(lab: Lab) -> None:
    answer = host_passthrough(lab.said, state="enabled", gpu=["0000:d8:00.0"], host="esx-01.lab", apply=True)
    assert (answer.exit_code, answer.result["changed"], answer.result["diff"]) == (3, False, [])
    assert "vdi-01" in answer.message
    assert lab.effects == []


def test_a_host_that_is_not_there_is_named(lab: Lab) -> None:
    with pytest.raises(HostNotFound, match="esx-99"):
        host_graphics_mode(lab.said, assignment="performance", host="esx-99", apply=True)


EQUAL: dict[str, Any] = {"scheduler": "equal-share", "host": "*"}


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # `%a` would be the language of the locale


def days(*offsets: int) -> str:
    """A window that is open for 23 hours around this time of these days, counted from today."""
    began = wall_clock() - timedelta(hours=12)
    names = [DAYS[(began.weekday() + offset) % 7] for offset in offsets]
    return f"{','.join(names)} {began:%H:%M}-{began - timedelta(hours=1):%H:%M} UTC"


def test_hosts_are_rebooted_one_after_another_if_the_task_says_so(tmp_path: Path) -> None:
    with SimServer(cluster(3, [desktops(1, 2, first=1), desktops(2, 3, first=3)])) as server:
        ready = tmp_path / "cluster.json"
        sim_client.write(ready, sim_client.of(server))
        connection = ConnectionArguments(hostname=f"sim@{ready}")
        rebooting: dict[str, Any] = {"reboot": "rolling", "max_hosts": 1, "window": days(-1, 0, 1), "vms": None}
        foreseen = host_gpu_scheduler(connection, **EQUAL, **rebooting, apply=False)
        assert (foreseen.exit_code, list(server.world.ledger)) == (0, [])
        applied = host_gpu_scheduler(connection, **EQUAL, **rebooting, apply=True)
        assert (applied.exit_code, applied.result["changed"]) == (0, True), applied.message
        same = ("changed", "diff", "reasons")
        assert {key: applied.result[key] for key in same} == {key: foreseen.result[key] for key in same}
        assert [outcome["verdict"] for outcome in applied.result["plan"]["outcomes"]] == ["done"] * 3
        hosts = list(server.world.by_type("HostSystem"))
        assert {host.state.loaded_module_options for host in hosts} == {"NVreg_RegistryDwords=RmPVMRL=0x01"}
        repeated = host_gpu_scheduler(connection, **EQUAL, **rebooting, apply=True)
        assert (repeated.exit_code, repeated.result["changed"], repeated.result["diff"]) == (0, False, [])


def test_hosts_that_cannot_be_emptied_are_named_and_nothing_is_changed(lab: Lab) -> None:
    refused = host_gpu_scheduler(lab.said, **EQUAL, reboot="rolling", apply=True)
    assert (refused.exit_code, refused.result["changed"], refused.result["diff"], lab.effects) == (3, False, [], [])
    assert "vdi-11" in refused.message


@pytest.mark.parametrize("reboot", [None, "rolling"])
def test_outside_of_the_window_nothing_is_set(lab: Lab, reboot: str | None) -> None:
    rebooting: dict[str, Any] = {"reboot": reboot, "window": days(3)}
    options: dict[str, Any] = {"scheduler": "equal-share", "host": "esx-01.lab", "gpu": ["0000:d8:00.0"]}
    if reboot is None:
        with pytest.raises(Refused, match="is closed: it opens at"):
            host_gpu_scheduler(lab.said, **options, **rebooting, apply=False)
    else:
        assert "is closed: it opens at" in host_gpu_scheduler(lab.said, **options, **rebooting, apply=False).message
    assert lab.effects == []
    opened = host_gpu_scheduler(lab.said, **options, window=days(-1, 0, 1), apply=True)
    assert (opened.exit_code, opened.result["changed"]) == (0, True)


@pytest.mark.parametrize(
    ("rebooting", "message"),
    [
        ({"max_hosts": 2}, "max_hosts needs reboot=rolling"),
        ({"reboot": "rolling", "max_hosts": 0}, "max_hosts 0"),
        ({"window": "tonight"}, "'tonight' is not a window"),
    ],
)
def test_what_means_nothing_of_a_reboot_is_said(lab: Lab, rebooting: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        host_gpu_scheduler(lab.said, scheduler="equal-share", host="esx-01.lab", **rebooting, apply=True)
    assert lab.effects == []
