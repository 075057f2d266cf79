"""Modes of devices where replies are lost, and where vCenter refuses or answers with an unknown word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuops.errors import Refused, VcenterUnreachable
from gpuops.model.vcenter.host_settings import HostSettings
from gpuops.plan.core.plan import Verdict
from gpuops.sim.operations.device_settings import set_direct_path_mode as set_mode
from gpuops.sim.wire.automation import direct_path_devices
from gpuops.vsphere import device_modes
from gpuops.vsphere.device_modes import devices_of
from gpuops.vsphere.transport import automation
from gpuops.vsphere.transport.exchange import exchange
from gpuops.vsphere.writing import host_changes as writing_hosts
from tests.wire.hosts.modes.bench import FREE, MIXED, WHOLE, Bench


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


@pytest.mark.long
@pytest.mark.parametrize("before", [True, False])
def test_a_lost_reply_is_answered_by_looking(bench: Bench, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    lose(monkeypatch, b"configure$task", before=before)
    report = bench.set(WHOLE)
    [outcome] = report.outcomes
    assert outcome.verdict is (Verdict.UNKNOWN if before else Verdict.DONE)
    assert bench.effects == ([] if before else ["ConfigureDirectPathDevice"])
    if not before:
        assert outcome.reason == "the reply was lost; found done"
        assert report.plan.afterwards[0].startswith("takes effect after a reboot"), (
            "it is unknown what the change needs"
        )
    assert bench.site.applied is None


@pytest.mark.long
def test_a_task_that_cannot_be_followed_is_answered_by_looking(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, b"com.vmware.cis.tasks", before=True)
    assert [outcome.verdict for outcome in bench.set(MIXED).outcomes] == [Verdict.DONE]


@pytest.mark.long
def test_a_task_that_does_not_end_is_not_waited_for_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_modes, "TASK_S", -1.0)
    [outcome] = bench.set(MIXED).outcomes
    assert (outcome.verdict, outcome.reason) == (Verdict.DONE, "the reply was lost; found done")


@pytest.mark.long
def test_what_vcenter_says_of_a_refusal_is_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A VM takes the GPU between the look and the call."""

    def take_gpu(configuration: Any, host: str) -> Any:
        vms = bench.server.world.by_type("VirtualMachine")
        next(vm for vm in vms if vm.display_name == "desk-06").state.held = ((0, str(FREE)),)
        return devices_of(configuration, host)

    monkeypatch.setattr(device_modes, "devices_of", take_gpu)
    [outcome] = bench.set(MIXED).outcomes
    assert outcome.verdict is Verdict.FAILED
    assert "vCenter refused to set the mode: Device 0000:af:00.0 of host esx-02.sup is in use." in outcome.reason
    assert bench.gpu.mode == "sameSize"


@pytest.mark.parametrize("impacts", [["HOST_MOVE_REQUIRED"], []])
def test_a_word_that_is_not_known_is_no_word_of_having_no_impact(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, impacts: list[str]
) -> None:
    def reply_with_impacts(*arguments: Any) -> list[str]:
        set_mode(*arguments)
        return impacts

    monkeypatch.setattr(direct_path_devices, "set_direct_path_mode", reply_with_impacts)
    report = bench.set(MIXED)
    assert [(outcome.verdict, outcome.reason) for outcome in report.outcomes] == [(Verdict.DONE, "")]
    assert report.plan.afterwards[0].startswith("takes effect after a reboot of esx-02.sup")


@pytest.mark.long
def test_a_vcenter_that_does_not_offer_the_list_is_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_path_devices.DirectPathDevices, "is_offered", False)
    settings = bench.host().settings
    assert settings == HostSettings(unread=settings.unread if settings else ())
    assert settings is not None
    [reason] = settings.unread
    assert "does not return modes of devices: OperationNotFound" in reason
    [outcome] = bench.set(MIXED).outcomes
    assert outcome.verdict is Verdict.FAILED
    assert "does not return modes of devices" in outcome.reason
    assert bench.effects == []


@pytest.mark.long
def test_a_vcenter_that_is_not_reached_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, b"direct_path_devices", before=True)
    with pytest.raises(VcenterUnreachable):
        bench.host()


@pytest.mark.long
@pytest.mark.parametrize("name", ["NotFound", "Unauthenticated", "Unauthorized", "InternalServerError"])
def test_a_change_whose_task_is_not_told_of_is_under_way_and_is_sent_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from com.vmware.vapi.std import errors_client

    sent: list[str] = []

    def late(host: Any, call: Any, pci_id: str, mode: str | None) -> list[str]:
        sent.append(pci_id)
        return ["NONE"]

    def raise_error(*_: Any) -> Any:
        raise getattr(errors_client, name)()

    monkeypatch.setattr(direct_path_devices, "set_direct_path_mode", late)
    monkeypatch.setattr(device_modes._ConfigureCall, "_end", raise_error)
    [outcome] = bench.set(MIXED).outcomes
    assert (outcome.verdict, sent) == (Verdict.UNKNOWN, [str(FREE)])
    assert f"its task cannot be followed: {name}" in outcome.reason
    assert bench.site.applied is None


@pytest.mark.long
def test_labels_that_are_refused_tell_of_the_modes_before_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise Refused("esx-02.sup: takes no labels")

    monkeypatch.setattr(writing_hosts.HostConnection, "_configure", refuse)
    [outcome] = bench.set(replace(WHOLE, label="ml")).outcomes
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason == f"esx-02.sup: takes no labels; set before that: {FREE} (vCenter: HOST_REBOOT_REQUIRED)"
