"""Modes of devices with reboots: what was killed or refused half-way goes on, and no host boots for nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pyVmomi import vim

from gpuops.api import configure
from gpuops.model.vcenter.host_settings import SizeMode
from gpuops.plan.core.plan import Verdict
from gpuops.plan.hosts.change.rolling_plan import NO_REBOOT_PERHAPS
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.sim.operations.device_settings import set_direct_path_mode as set_mode
from gpuops.sim.wire.automation import direct_path_devices
from gpuops.vsphere import device_modes
from tests.sample import mostly_long
from tests.wire.hosts.clusters import cluster
from tests.wire.hosts.modes.bench import BUSY, FREE
from tests.wire.hosts.rolling import Bench as RollingBench
from tests.wire.hosts.rolling import Start
from tests.wire.steps.points import Killed, Points


def plan_roll(bench: RollingBench, request: Any) -> Any:
    report = bench.roll(request)
    assert report.exit_code == 0, report.outcomes
    return report


def boots(bench: RollingBench) -> int:
    return len([change for change in bench.world.ledger if change.after.get("connection") == "connected"])


@pytest.mark.parametrize(("rebinds", "reboots"), [(False, 1), (True, 0)])
def test_a_host_is_rebooted_only_if_vcenter_says_so(start: Start, *, rebinds: bool, reboots: int) -> None:
    bench = start(cluster(1, [], api_version="9.1.0.0"))
    bench.host("esx-01").state.rebinds_without_reboot = rebinds
    plan_roll(bench, SetPassthrough(True, (str(BUSY),), None, "esx-01"))
    planned = bench.roll(SetPassthrough(False, (str(BUSY),), None, "esx-01"), apply=False).plan
    assert planned.because == (NO_REBOOT_PERHAPS,), "said before anybody agrees"
    [gpu] = bench.host("esx-01").state.gpus
    assert (gpu.passthrough_active, boots(bench), bench.host("esx-01").state.in_maintenance) == (True, reboots, False)
    assert ("esx-01: needs no reboot" in bench.told) is rebinds
    second_run = bench.roll(SetPassthrough(True, (str(BUSY),), None, "esx-01"))
    assert (second_run.changed, second_run.plan.rounds) == (False, ())


@pytest.mark.long
def test_what_was_set_before_and_waits_is_brought_into_force(start: Start) -> None:
    bench = start(cluster(1, [], api_version="9.1.0.0"))
    request = SetPassthrough(True, (str(BUSY),), None, "esx-01")
    assert bench.on_site(lambda site: configure(request, site, apply=True)).exit_code == 0
    plan_roll(bench, request)
    [gpu] = bench.host("esx-01").state.gpus
    assert (gpu.passthrough_active, boots(bench)) == (True, 1)


@pytest.mark.long
def test_a_run_that_was_killed_between_two_devices_is_finished_by_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start(cluster(1, [], gpus=2, api_version="9.1.0.0"))
    request = SetMode(vgpu_mode=SizeMode.MIXED_SIZE, host="esx-01")
    real = device_modes._ConfigureCall.set_mode

    def kill(*arguments: Any) -> Any:
        real(*arguments)
        raise Killed

    monkeypatch.setattr(device_modes._ConfigureCall, "set_mode", kill)
    with pytest.raises(Killed):
        bench.on_site(lambda site: configure(request, site, apply=True))
    monkeypatch.setattr(device_modes._ConfigureCall, "set_mode", real)
    assert [gpu.mode.value for gpu in bench.host("esx-01").state.gpus] == ["mixedSize", "sameSize"]
    report = bench.on_site(lambda site: configure(request, site, apply=True))
    assert [outcome.reason for outcome in report.outcomes] == ["vCenter: in effect at once"], (
        "of the device that was left"
    )
    assert [gpu.mode.value for gpu in bench.host("esx-01").state.gpus] == ["mixedSize", "mixedSize"]
    assert not bench.on_site(lambda site: configure(request, site, apply=True)).changed


@pytest.mark.parametrize("rebinds", mostly_long([False, True], [True]))
def test_a_change_of_modes_goes_on_from_where_it_was_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, rebinds: bool
) -> None:
    bench = start(cluster(1, [], gpus=2, api_version="9.1.0.0"))
    bench.host("esx-01").state.rebinds_without_reboot = rebinds
    request = SetPassthrough(True, (str(BUSY), str(FREE)), "ml", "esx-01")
    points = Points(monkeypatch)
    points.kill_at_each_kind()
    real = device_modes._ConfigureCall.set_mode

    def watch_call(*arguments: Any) -> Any:
        points._point(f"before the mode of {arguments[2]}")
        reply = real(*arguments)
        points._point(f"after the mode of {arguments[2]}")
        return reply

    monkeypatch.setattr(device_modes._ConfigureCall, "set_mode", watch_call)
    kills, report = 0, None
    while report is None:
        try:
            report = bench.resume() if bench.is_open() else bench.roll(request)
        except Killed:
            kills += 1
    assert report.exit_code == 0, report.outcomes
    assert kills > 10
    host = bench.host("esx-01").state
    assert [(gpu.passthrough_active, gpu.label) for gpu in host.gpus] == [(True, "ml")] * 2
    assert (host.in_maintenance, boots(bench)) == (False, 1), "vCenter's reply is lost"
    sets = [change for change in bench.world.ledger if change.method == "ConfigureDirectPathDevice"]
    assert len(sets) == 2, "each mode was set once"


@pytest.mark.parametrize("rebinds", [False, True])
def test_what_was_set_before_a_device_is_refused_is_named_and_keeps_the_host_out_of_service(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, rebinds: bool
) -> None:
    bench = start(cluster(1, [], gpus=2, api_version="9.1.0.0"))
    bench.host("esx-01").state.rebinds_without_reboot = rebinds
    request = SetPassthrough(True, (str(BUSY), str(FREE)), None, "esx-01")

    def refusing(host: Any, call: Any, pci_id: str, mode: str | None) -> list[str]:
        if pci_id == str(FREE):
            raise vim.fault.HostConfigFault(msg="The host is busy.")
        return set_mode(host, call, pci_id, mode)

    with monkeypatch.context() as patched:
        patched.setattr(direct_path_devices, "set_direct_path_mode", refusing)
        report = bench.roll(request)
    [outcome] = report.outcomes
    assert outcome.verdict is Verdict.FAILED
    impact = "NONE" if rebinds else "HOST_REBOOT_REQUIRED"
    assert f"The host is busy.; set before that: {BUSY} (vCenter: {impact})" in outcome.reason
    assert ("stays in maintenance mode" in outcome.reason) is not rebinds
    state = bench.host("esx-01").state
    assert (state.in_maintenance, boots(bench)) == (not rebinds, 0)
    assert bench.resume().exit_code == 0
    assert [gpu.passthrough_active for gpu in state.gpus] == [True, True]
    assert (bench.host("esx-01").state.in_maintenance, boots(bench)) == (False, 1)
