"""Modes of devices over real wires: by the calls of vSphere 9.1 where it has them, else by those of 8.x."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.api import Site, mode_show
from gpuops.clock import wall_clock
from gpuops.execute.site import catalog_of
from gpuops.model.devices.device_mode import DeviceMode
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host_settings import HostSettings, SharedType, SizeMode
from gpuops.model.vcenter.target import Secret, Target
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import ConfigureModes
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import READ_ONLY
from gpuops.vsphere import device_modes as reading
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.transport import automation
from gpuops.vsphere.transport.exchange import exchange
from tests.sample import mostly_long
from tests.wire.hosts.modes.bench import BUSY, FREE, HOST, MIXED, WHOLE, Bench

VERSIONS = mostly_long(["8.0.3.0", "9.0.0.0"], ["9.0.0.0"])


@pytest.mark.long
def test_a_vcenter_9_1_lists_the_devices_of_a_host(bench: Bench) -> None:
    busy = bench.device(BUSY)
    assert (busy.name, busy.mode, busy.driver_name, busy.driver_version) == (
        "NVIDIA A40", DeviceMode.VGPU_SAME_SIZE, "nvidia", "580.65.05",
    )  # fmt: skip
    assert busy.configurable == ("host", "directPath", "vGpuSameSize", "vGpuMixedSize")
    assert (busy.used_mib, busy.total_mib, busy.reserved_mib, busy.interconnect) == (3 * 8192, 49152, 0, "PCIe")
    assert busy.vms is not None
    assert len(busy.vms) == 3
    assert busy.vm_classes is not None
    assert {(vm_class.vm_class, vm_class.in_use, vm_class.total) for vm_class in busy.vm_classes} == {
        ("vgpu-8q", 2, 6), ("vgpu-48c", 0, 0),
    }  # fmt: skip
    card = bench.device(PciAddress.parse("0000:31:00.0"))
    assert (card.mode, card.total_mib, card.vm_classes) == ("host", None, None)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_vcenter_lists_none_and_goes_on_as_before(serve: Callable[[str], Bench], version: str) -> None:
    bench = serve(version)
    assert bench.host().settings is None
    assert bench.set(MIXED).exit_code == bench.set(WHOLE).exit_code == 0
    assert bench.effects == ["UpdateGraphicsConfig", "UpdatePassthruConfig"]
    assert (bench.gpu.mode, bench.gpu.passthrough_enabled) == ("mixedSize", True)


@pytest.mark.long
def test_a_size_is_set_by_its_mode_and_a_second_run_changes_nothing(bench: Bench) -> None:
    planned = bench.set(MIXED, apply=False)
    assert bench.effects == []
    assert planned.plan.afterwards[0].startswith("vCenter reports only when the mode is set")
    report = bench.set(MIXED)
    assert (report.exit_code, report.plan.afterwards, bench.effects) == (0, (), ["ConfigureDirectPathDevice"])
    [outcome] = report.outcomes
    assert (outcome.verdict, outcome.reason) == (Verdict.DONE, "vCenter: in effect at once")
    assert isinstance(outcome.step, ConfigureModes)
    assert (bench.gpu.mode, bench.device().mode) == ("mixedSize", DeviceMode.VGPU_MIXED_SIZE)
    second_run = bench.set(MIXED)
    assert (second_run.changed, second_run.plan.steps) == (False, ())
    assert bench.set(replace(MIXED, vgpu_mode=SizeMode.SAME_SIZE)).exit_code == 0
    assert bench.gpu.mode == "sameSize"


@pytest.mark.long
@pytest.mark.parametrize(
    ("rebinds", "impact", "remaining_action"),
    [
        (False, "vCenter: needs a reboot", "takes effect after a reboot of esx-02.sup: "),
        (True, "vCenter: needs maintenance mode", "takes effect after maintenance mode of esx-02.sup: "),
    ],
)
def test_what_a_change_takes_is_told_when_it_is_set(
    bench: Bench, *, rebinds: bool, impact: str, remaining_action: str
) -> None:
    bench.state.rebinds_without_reboot = rebinds
    report = bench.set(replace(WHOLE, label="ml"))
    assert (report.exit_code, [outcome.reason for outcome in report.outcomes]) == (0, [impact])
    assert [action.startswith(remaining_action) for action in report.plan.afterwards] == [True]
    assert bench.effects == ["ConfigureDirectPathDevice", "UpdatePassthruConfig"]
    assert (bench.gpu.passthrough_enabled, bench.gpu.passthrough_active, bench.gpu.label) == (True, False, "ml")
    second_run = bench.set(replace(WHOLE, label="ml"))
    assert "a reboot is pending" in second_run.plan.because[0]
    back = bench.set(SetPassthrough(False, (str(FREE),), None, HOST))
    assert (back.exit_code, back.outcomes[0].reason) == (0, "vCenter: in effect at once")
    assert (bench.gpu.passthrough_enabled, bench.device().mode) == (False, DeviceMode.VGPU_SAME_SIZE)


@pytest.mark.long
def test_what_is_more_than_a_mode_goes_by_the_calls_of_8(bench: Bench) -> None:
    assert bench.set(replace(MIXED, default_type=SharedType.SHARED)).exit_code == 0
    assert bench.effects == ["UpdateGraphicsConfig"]
    assert bench.set(replace(WHOLE, on=False, label="x")).exit_code == 0
    assert bench.effects[1:] == ["UpdatePassthruConfig"]


def test_a_size_takes_no_gpu_out_of_directpath(bench: Bench) -> None:
    """It is configured and not in force: the mode of vGPUs would take it back."""
    assert bench.set(WHOLE).exit_code == 0
    assert bench.set(MIXED).exit_code == 0
    assert (bench.gpu.mode, bench.gpu.passthrough_enabled) == ("mixedSize", True)


@pytest.mark.long
def test_a_busy_gpu_keeps_its_mode(bench: Bench) -> None:
    for request in (replace(MIXED, gpu=(str(BUSY),)), replace(WHOLE, gpu=(str(BUSY),))):
        report = bench.set(request)
        assert report.exit_code == 3
        assert "desk-06" in str(report.plan.rejections[0])
    assert bench.effects == []


@pytest.mark.long
def test_a_mode_that_vcenter_does_not_offer_is_refused(bench: Bench) -> None:
    inventory = bench.site.vcenter.inventory()
    inventory = bench.site.hosts.with_settings(inventory, [inventory.find_host(HOST).ref])
    host = inventory.find_host(HOST)
    assert host.settings is not None
    few = tuple(replace(gpu, configurable=("host", "vGpuSameSize")) for gpu in host.settings.passthrough or ())
    limited_inventory = inventory.with_hosts([replace(host, settings=replace(host.settings, passthrough=few))])
    for request, mode in ((MIXED, "vGpuMixedSize"), (WHOLE, "directPath")):
        [refusal] = request.plan(limited_inventory, catalog_of(limited_inventory)).rejections
        assert str(refusal) == (
            f"esx-02.sup 0000:af:00.0: vCenter does not offer mode {mode} for it; it offers: host, vGpuSameSize"
        )


@pytest.mark.long
def test_reserved_slots_that_lose_their_gpus_are_named(bench: Bench) -> None:
    [reservation] = bench.server.world.direct_path.reservations
    bench.server.world.direct_path.reservations = (replace(reservation, units=11),)
    [warning] = bench.set(WHOLE, apply=False).plan.warnings
    assert warning == (
        "sup-cluster: 9 of nvidia_a40-8q are reserved for other VMs, and only 8 would surely be left: "
        "VMs with this reservation may find no GPU"
    )
    bench.server.world.direct_path.reservations = (replace(reservation, units=10),)
    assert bench.set(WHOLE, apply=False).plan.warnings == ()


@pytest.mark.long
def test_a_login_without_the_privilege_is_told_before_anything_is_sent(bench: Bench) -> None:
    bench.server.world.authority.permit(bench.server.username, READ_ONLY)
    report = bench.set(MIXED)
    assert [str(rejection) for rejection in report.plan.rejections] == [
        "esx-02.sup: this login lacks Host.Config.PciPassthru"
    ]
    assert bench.effects == []
    assert bench.device().mode == DeviceMode.VGPU_SAME_SIZE, "reading is enough to be shown it"


@pytest.mark.long
def test_one_login_and_one_list_for_each_host(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []

    def count_exchange(connection: Any, method: str, path: str, **options: Any) -> Any:
        calls.append(options.get("body") or b"")
        return exchange(connection, method, path, **options)

    monkeypatch.setattr(automation, "exchange", count_exchange)
    mode_show(bench.site, Scope())
    assert len(calls) == 2 + 2, "in and out, and two hosts"
    bench.site.vcenter.inventory()
    bench.set(MIXED, apply=False)
    assert len(calls) == 4, "neither the bulk read nor a plan asks"


@pytest.mark.long
def test_without_tls_modes_are_not_listed_and_go_by_the_calls_of_8(tmp_path: Path) -> None:
    with SimServer(build("supervisor", api_version="9.1.0.0"), tls=False) as server:
        target = Target("127.0.0.1", server.username, Secret(server.password), port=server.port, tls=False)
        with Connection(target) as connection:
            bench = Bench(server, Site(connection, tmp_path, wall_clock))
            settings = bench.host().settings
            assert settings is not None
            assert "the API for them needs https" in settings.unread[0]
            assert bench.set(MIXED).exit_code == bench.set(WHOLE).exit_code == 0
            assert bench.effects == ["UpdateGraphicsConfig", "UpdatePassthruConfig"]


@pytest.mark.long
def test_so_many_hosts_are_asked_at_the_most(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_HOSTS", 1)
    hosts = mode_show(bench.site, Scope())[1]
    assert [host.settings is not None and host.settings.devices is not None for host in hosts] == [True, False]
    assert "were not read" in (hosts[1].settings or HostSettings()).unread[0]
