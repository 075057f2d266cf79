"""Modes of devices over real wires: by the calls of vSphere 9.1 where it has them, else by those of 8.x."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.api import Site, configure, mode_show
from gpuops.clock import wall_clock
from gpuops.errors import Refused, VcenterUnreachable
from gpuops.execute.site import catalog_of
from gpuops.model.devices.device_mode import DeviceMode, HostDevice
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, SharedType, SizeMode
from gpuops.model.vcenter.target import Secret, Target
from gpuops.plan.core.host_steps import ConfigureModes, HostStep
from gpuops.plan.core.outcome import Report, Verdict
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.change.roll import NO_REBOOT_PERHAPS
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.sim.operations.hosts.mode_change import configure as set_mode
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import READ_ONLY
from gpuops.sim.wire.automation import direct_path_devices
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.reading import device_modes as reading
from gpuops.vsphere.reading.device_modes import devices_of
from gpuops.vsphere.transport import automation
from gpuops.vsphere.transport.exchange import exchange
from gpuops.vsphere.writing import device_modes
from gpuops.vsphere.writing import hosts as writing_hosts
from tests.sample import mostly_long
from tests.wire.conftest import target_of
from tests.wire.hosts.clusters import cluster
from tests.wire.hosts.rolling import Bench as RollingBench
from tests.wire.hosts.rolling import Start
from tests.wire.steps.points import Killed, Points

FREE = PciAddress.parse("0000:af:00.0")
BUSY = PciAddress.parse("0000:3b:00.0")
HOST = "esx-02.sup"
VERSIONS = mostly_long(["8.0.3.0", "9.0.0.0"], ["9.0.0.0"])
MIXED = SetMode(vgpu_mode=SizeMode.MIXED_SIZE, gpu=(str(FREE),), host=HOST)
WHOLE = SetPassthrough(True, (str(FREE),), None, HOST)


@dataclass
class Bench:
    """A site on `supervisor`, whose second host has a GPU that nothing runs on."""

    server: SimServer
    site: Site

    @property
    def state(self) -> Any:
        return next(each for each in self.server.world.by_type("HostSystem") if each.display_name == HOST).state

    @property
    def gpu(self) -> Any:
        return self.state.gpu(str(FREE))

    @property
    def effects(self) -> list[str]:
        return [entry.method for entry in self.server.world.ledger]

    def set(self, request: Any, *, apply: bool = True) -> Report[HostStep]:
        return configure(request, self.site, apply=apply)

    def host(self) -> Host:
        [host] = mode_show(self.site, Scope(host=HOST))[1]
        return host

    def device(self, address: PciAddress = FREE) -> HostDevice:
        settings = self.host().settings
        assert settings is not None
        assert settings.devices is not None, settings.unread
        return next(each for each in settings.devices if each.address == address)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Bench]]:
    opened: list[tuple[SimServer, Connection]] = []

    def start(version: str = "9.1.0.0") -> Bench:
        server = SimServer(build("supervisor", api_version=version)).__enter__()
        opened.append((server, Connection(target_of(server)).__enter__()))
        return Bench(server, Site(opened[-1][1], tmp_path / version, wall_clock))

    yield start
    for server, connection in opened:
        connection.__exit__(None, None, None)
        server.__exit__(None, None, None)
        assert (server.world.bugs, list(server.world.sessions)) == ([], [])


@pytest.fixture
def bench(serve: Callable[[str], Bench]) -> Bench:
    return serve("9.1.0.0")


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
    assert {(each.vm_class, each.in_use, each.total) for each in busy.vm_classes} == {
        ("vgpu-8q", 2, 6), ("vgpu-48c", 0, 0),
    }  # fmt: skip
    card = bench.device(PciAddress.parse("0000:31:00.0"))
    assert (card.mode, card.total_mib, card.vm_classes) == ("host", None, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_vcenter_lists_none_and_goes_on_as_before(serve: Callable[[str], Bench], version: str) -> None:
    bench = serve(version)
    assert bench.host().settings is None
    assert bench.set(MIXED).exit_code == bench.set(WHOLE).exit_code == 0
    assert bench.effects == ["UpdateGraphicsConfig", "UpdatePassthruConfig"]
    assert (bench.gpu.mode, bench.gpu.passthrough_enabled) == ("mixedSize", True)


def test_a_size_is_set_by_its_mode_and_a_second_run_changes_nothing(bench: Bench) -> None:
    planned = bench.set(MIXED, apply=False)
    assert bench.effects == []
    assert planned.plan.afterwards[0].startswith("vCenter tells only when it is set whether it is in force at once")
    report = bench.set(MIXED)
    assert (report.exit_code, report.plan.afterwards, bench.effects) == (0, (), ["ConfigureDirectPathDevice"])
    [outcome] = report.outcomes
    assert (outcome.verdict, outcome.reason) == (Verdict.DONE, "vCenter: in force at once")
    assert isinstance(outcome.step, ConfigureModes)
    assert (bench.gpu.mode, bench.device().mode) == ("mixedSize", DeviceMode.VGPU_MIXED_SIZE)
    again = bench.set(MIXED)
    assert (again.changed, again.plan.steps) == (False, ())
    assert bench.set(replace(MIXED, vgpu_mode=SizeMode.SAME_SIZE)).exit_code == 0
    assert bench.gpu.mode == "sameSize"


@pytest.mark.parametrize(
    ("rebinds", "impact", "left"),
    [
        (False, "vCenter: takes a reboot", "not in force before a reboot of esx-02.sup: "),
        (True, "vCenter: takes maintenance mode", "not in force before maintenance mode of esx-02.sup: "),
    ],
)
def test_what_a_change_takes_is_told_when_it_is_set(bench: Bench, *, rebinds: bool, impact: str, left: str) -> None:
    bench.state.rebinds_without_reboot = rebinds
    report = bench.set(replace(WHOLE, label="ml"))
    assert (report.exit_code, [each.reason for each in report.outcomes]) == (0, [impact])
    assert [each.startswith(left) for each in report.plan.afterwards] == [True]
    assert bench.effects == ["ConfigureDirectPathDevice", "UpdatePassthruConfig"]
    assert (bench.gpu.passthrough_enabled, bench.gpu.passthrough_active, bench.gpu.label) == (True, False, "ml")
    again = bench.set(replace(WHOLE, label="ml"))
    assert "a reboot is pending" in again.plan.because[0]
    back = bench.set(SetPassthrough(False, (str(FREE),), None, HOST))
    assert (back.exit_code, back.outcomes[0].reason) == (0, "vCenter: in force at once")
    assert (bench.gpu.passthrough_enabled, bench.device().mode) == (False, DeviceMode.VGPU_SAME_SIZE)


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


def test_a_busy_gpu_keeps_its_mode(bench: Bench) -> None:
    for request in (replace(MIXED, gpu=(str(BUSY),)), replace(WHOLE, gpu=(str(BUSY),))):
        report = bench.set(request)
        assert report.exit_code == 3
        assert "desk-06" in str(report.plan.rejections[0])
    assert bench.effects == []


def test_a_mode_that_vcenter_does_not_offer_is_refused(bench: Bench) -> None:
    inventory = bench.site.vcenter.inventory()
    inventory = bench.site.hosts.with_settings(inventory, [inventory.find_host(HOST).ref])
    host = inventory.find_host(HOST)
    assert host.settings is not None
    few = tuple(replace(each, configurable=("host", "vGpuSameSize")) for each in host.settings.passthrough or ())
    seen = inventory.with_hosts([replace(host, settings=replace(host.settings, passthrough=few))])
    for request, mode in ((MIXED, "vGpuMixedSize"), (WHOLE, "directPath")):
        [refusal] = request.plan(seen, catalog_of(seen)).rejections
        assert str(refusal) == (
            f"esx-02.sup 0000:af:00.0: vCenter does not configure it to {mode}; to: host, vGpuSameSize"
        )


def test_reserved_slots_that_lose_their_gpus_are_named(bench: Bench) -> None:
    [reservation] = bench.server.world.direct_path.reservations
    bench.server.world.direct_path.reservations = (replace(reservation, units=11),)
    [warning] = bench.set(WHOLE, apply=False).plan.warnings
    assert warning == (
        "sup-cluster: 9 of nvidia_a40-8q reserved, not free: 8 would be left, or may be: "
        "VMs for which it is reserved may find no GPU"
    )
    bench.server.world.direct_path.reservations = (replace(reservation, units=10),)
    assert bench.set(WHOLE, apply=False).plan.warnings == ()


def test_a_login_without_the_privilege_is_told_before_anything_is_sent(bench: Bench) -> None:
    bench.server.world.authority.permit(bench.server.username, READ_ONLY)
    report = bench.set(MIXED)
    assert [str(each) for each in report.plan.rejections] == ["esx-02.sup: this login lacks Host.Config.PciPassthru"]
    assert bench.effects == []
    assert bench.device().mode == DeviceMode.VGPU_SAME_SIZE, "reading is enough to be shown it"


def lose(monkeypatch: pytest.MonkeyPatch, text: bytes, *, before: bool) -> None:
    """The connection breaks at each call that has this text: before it is sent, or instead of its reply."""

    def broken(connection: Any, method: str, path: str, **options: Any) -> Any:
        if text in (options.get("body") or b"") and before:
            raise ConnectionResetError("gone")
        reply = exchange(connection, method, path, **options)
        if text in (options.get("body") or b""):
            raise ConnectionResetError("gone")
        return reply

    monkeypatch.setattr(automation, "exchange", broken)


@pytest.mark.parametrize("before", [True, False])
def test_a_lost_reply_is_answered_by_looking(bench: Bench, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    lose(monkeypatch, b"configure$task", before=before)
    report = bench.set(WHOLE)
    [outcome] = report.outcomes
    assert outcome.verdict is (Verdict.UNKNOWN if before else Verdict.DONE)
    assert bench.effects == ([] if before else ["ConfigureDirectPathDevice"])
    if not before:
        assert outcome.reason == "the reply was lost; found done"
        assert report.plan.afterwards[0].startswith("not in force before a reboot"), "nobody knows what it takes"
    assert bench.site.applied is None


def test_a_task_that_cannot_be_followed_is_answered_by_looking(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, b"com.vmware.cis.tasks", before=True)
    assert [each.verdict for each in bench.set(MIXED).outcomes] == [Verdict.DONE]


def test_a_task_that_does_not_end_is_not_waited_for_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_modes, "TASK_S", -1.0)
    [outcome] = bench.set(MIXED).outcomes
    assert (outcome.verdict, outcome.reason) == (Verdict.DONE, "the reply was lost; found done")


def test_what_vcenter_says_of_a_refusal_is_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A VM takes the GPU between the look and the call."""

    def taken(configuration: Any, host: str) -> Any:
        vms = bench.server.world.by_type("VirtualMachine")
        next(each for each in vms if each.display_name == "desk-06").state.held = ((0, str(FREE)),)
        return devices_of(configuration, host)

    monkeypatch.setattr(device_modes, "devices_of", taken)
    [outcome] = bench.set(MIXED).outcomes
    assert outcome.verdict is Verdict.FAILED
    assert "vCenter does not set the mode: Device 0000:af:00.0 of host esx-02.sup is in use." in outcome.reason
    assert bench.gpu.mode == "sameSize"


@pytest.mark.parametrize("told", [["HOST_MOVE_REQUIRED"], []])
def test_a_word_that_is_not_known_is_no_word_of_having_no_impact(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    def worded(*arguments: Any) -> list[str]:
        set_mode(*arguments)
        return told

    monkeypatch.setattr(direct_path_devices, "configure", worded)
    report = bench.set(MIXED)
    assert [(each.verdict, each.reason) for each in report.outcomes] == [(Verdict.DONE, "")]
    assert report.plan.afterwards[0].startswith("not in force before a reboot of esx-02.sup")


def test_a_vcenter_that_does_not_offer_the_list_is_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_path_devices.DirectPathDevices, "offered", False)
    settings = bench.host().settings
    assert settings == HostSettings(unread=settings.unread if settings else ())
    assert settings is not None
    [reason] = settings.unread
    assert "does not tell modes of devices: OperationNotFound" in reason
    [outcome] = bench.set(MIXED).outcomes
    assert outcome.verdict is Verdict.FAILED
    assert "does not tell modes of devices" in outcome.reason
    assert bench.effects == []


def test_a_vcenter_that_is_not_reached_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, b"direct_path_devices", before=True)
    with pytest.raises(VcenterUnreachable):
        bench.host()


def test_one_login_and_one_list_for_each_host(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []

    def counted(connection: Any, method: str, path: str, **options: Any) -> Any:
        calls.append(options.get("body") or b"")
        return exchange(connection, method, path, **options)

    monkeypatch.setattr(automation, "exchange", counted)
    mode_show(bench.site, Scope())
    assert len(calls) == 2 + 2, "in and out, and two hosts"
    bench.site.vcenter.inventory()
    bench.set(MIXED, apply=False)
    assert len(calls) == 4, "neither the bulk read nor a plan asks"


def test_without_tls_modes_are_not_listed_and_go_by_the_calls_of_8(tmp_path: Path) -> None:
    with SimServer(build("supervisor", api_version="9.1.0.0"), tls=False) as server:
        target = Target("127.0.0.1", server.username, Secret(server.password), port=server.port, tls=False)
        with Connection(target) as connection:
            bench = Bench(server, Site(connection, tmp_path, wall_clock))
            settings = bench.host().settings
            assert settings is not None
            assert "their API is spoken over https only" in settings.unread[0]
            assert bench.set(MIXED).exit_code == bench.set(WHOLE).exit_code == 0
            assert bench.effects == ["UpdateGraphicsConfig", "UpdatePassthruConfig"]


def test_so_many_hosts_are_asked_at_the_most(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_HOSTS", 1)
    hosts = mode_show(bench.site, Scope())[1]
    assert [host.settings is not None and host.settings.devices is not None for host in hosts] == [True, False]
    assert "were not asked for" in (hosts[1].settings or HostSettings()).unread[0]


# --- with reboots ---------------------------------------------------------------------------------------------------


def rolled(bench: RollingBench, request: Any) -> Any:
    report = bench.roll(request)
    assert report.exit_code == 0, report.outcomes
    return report


def boots(bench: RollingBench) -> int:
    return len([entry for entry in bench.world.ledger if entry.after.get("connection") == "connected"])


@pytest.mark.parametrize(("rebinds", "reboots"), [(False, 1), (True, 0)])
def test_a_host_is_rebooted_only_if_vcenter_says_so(start: Start, *, rebinds: bool, reboots: int) -> None:
    bench = start(cluster(1, [], api_version="9.1.0.0"))
    bench.host("esx-01").state.rebinds_without_reboot = rebinds
    rolled(bench, SetPassthrough(True, (str(BUSY),), None, "esx-01"))
    planned = bench.roll(SetPassthrough(False, (str(BUSY),), None, "esx-01"), apply=False).plan
    assert planned.because == (NO_REBOOT_PERHAPS,), "said before anybody agrees"
    [gpu] = bench.host("esx-01").state.gpus
    assert (gpu.passthrough_active, boots(bench), bench.host("esx-01").state.in_maintenance) == (True, reboots, False)
    assert ("esx-01: needs no reboot, as vCenter says" in bench.told) is rebinds
    again = bench.roll(SetPassthrough(True, (str(BUSY),), None, "esx-01"))
    assert (again.changed, again.plan.rounds) == (False, ())


def test_what_was_set_before_and_waits_is_brought_into_force(start: Start) -> None:
    bench = start(cluster(1, [], api_version="9.1.0.0"))
    request = SetPassthrough(True, (str(BUSY),), None, "esx-01")
    assert bench.on_site(lambda site: configure(request, site, apply=True)).exit_code == 0
    rolled(bench, request)
    [gpu] = bench.host("esx-01").state.gpus
    assert (gpu.passthrough_active, boots(bench)) == (True, 1)


def test_a_run_that_was_killed_between_two_devices_is_finished_by_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start(cluster(1, [], gpus=2, api_version="9.1.0.0"))
    request = SetMode(vgpu_mode=SizeMode.MIXED_SIZE, host="esx-01")
    real = device_modes._ConfigureCall.result

    def killed(*arguments: Any) -> Any:
        real(*arguments)
        raise Killed

    monkeypatch.setattr(device_modes._ConfigureCall, "result", killed)
    with pytest.raises(Killed):
        bench.on_site(lambda site: configure(request, site, apply=True))
    monkeypatch.setattr(device_modes._ConfigureCall, "result", real)
    assert [gpu.mode.value for gpu in bench.host("esx-01").state.gpus] == ["mixedSize", "sameSize"]
    report = bench.on_site(lambda site: configure(request, site, apply=True))
    assert [each.reason for each in report.outcomes] == ["vCenter: in force at once"], "of the device that was left"
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
    real = device_modes._ConfigureCall.result

    def watched(*arguments: Any) -> Any:
        points._point(f"before the mode of {arguments[2]}")
        told = real(*arguments)
        points._point(f"after the mode of {arguments[2]}")
        return told

    monkeypatch.setattr(device_modes._ConfigureCall, "result", watched)
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
    assert (host.in_maintenance, boots(bench)) == (False, 1), "nobody knows any more what vCenter said"
    sets = [entry for entry in bench.world.ledger if entry.method == "ConfigureDirectPathDevice"]
    assert len(sets) == 2, "each mode was set once"


@pytest.mark.parametrize("name", ["NotFound", "Unauthenticated", "Unauthorized", "InternalServerError"])
def test_a_change_whose_task_is_not_told_of_is_under_way_and_is_sent_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from com.vmware.vapi.std import errors_client

    sent: list[str] = []

    def late(host: Any, call: Any, pci_id: str, mode: str | None) -> list[str]:
        sent.append(pci_id)
        return ["NONE"]

    def untold(*_: Any) -> Any:
        raise getattr(errors_client, name)()

    monkeypatch.setattr(direct_path_devices, "configure", late)
    monkeypatch.setattr(device_modes._ConfigureCall, "_end", untold)
    [outcome] = bench.set(MIXED).outcomes
    assert (outcome.verdict, sent) == (Verdict.UNKNOWN, [str(FREE)])
    assert f"its task cannot be followed: {name}" in outcome.reason
    assert bench.site.applied is None


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
        patched.setattr(direct_path_devices, "configure", refusing)
        report = bench.roll(request)
    [outcome] = report.outcomes
    assert outcome.verdict is Verdict.FAILED
    told = "NONE" if rebinds else "HOST_REBOOT_REQUIRED"
    assert f"The host is busy.; set before that: {BUSY} (vCenter: {told})" in outcome.reason
    assert ("stays in maintenance mode" in outcome.reason) is not rebinds
    state = bench.host("esx-01").state
    assert (state.in_maintenance, boots(bench)) == (not rebinds, 0)
    assert bench.resume().exit_code == 0
    assert [gpu.passthrough_active for gpu in state.gpus] == [True, True]
    assert (bench.host("esx-01").state.in_maintenance, boots(bench)) == (False, 1)


def test_labels_that_are_refused_tell_of_the_modes_before_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise Refused("esx-02.sup: takes no labels")

    monkeypatch.setattr(writing_hosts.HostConnection, "_configure", refused)
    [outcome] = bench.set(replace(WHOLE, label="ml")).outcomes
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason == f"esx-02.sup: takes no labels; set before that: {FREE} (vCenter: HOST_REBOOT_REQUIRED)"
