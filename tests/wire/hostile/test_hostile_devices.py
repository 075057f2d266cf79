"""Replies that are no list of devices, or no reply to the call that sets a mode, end with a reason within seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.api import Site, configure, mode_show
from gpuops.clock import wall_clock
from gpuops.model.vcenter.host_settings import HostSettings, SizeMode
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.report.hosts.host_settings_view import mode_document, mode_text
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire.automation import rest
from gpuops.sim.wire.automation.services import VapiServices
from gpuops.vsphere.connection import Connection
from tests.document_schemas import misfits, read_whole
from tests.sample import mostly_long
from tests.wire.conftest import target_of
from tests.wire.hostile.test_hostile_tags import REPLIES, strike

pytestmark = pytest.mark.long

HOST = "esx-02.sup"
MIXED = SetMode(vgpu_mode=SizeMode.MIXED_SIZE, gpu=("0000:af:00.0",), host=HOST)
SOME = ("HTML", "nothing", "NaN", "a list of lists", "no result", "nested within", "another output", "too large")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with SimServer(build("supervisor", api_version="9.1.0.0")) as server:
        with Connection(target_of(server)) as connection:
            yield Site(connection, tmp_path, wall_clock)
        assert server.world.bugs == []


def read_settings(site: Site) -> HostSettings:
    inventory, hosts = mode_show(site, Scope(host=HOST))
    assert mode_text(inventory, hosts)
    assert misfits(read_whole(mode_document(inventory, hosts))) == []
    [host] = hosts
    assert host.settings is not None
    return host.settings


@pytest.mark.long
@pytest.mark.parametrize("name", mostly_long(list(REPLIES), list(SOME)))
def test_a_reply_that_is_none_is_a_reason(site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    strike(monkeypatch, REPLIES[name], service="direct_path_devices")
    before_s = time.process_time()
    settings = read_settings(site)
    assert time.process_time() - before_s < 10
    assert settings.devices is None
    assert len(settings.unread) == 1
    [outcome] = configure(MIXED, site, apply=True).outcomes
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason.startswith(HOST)


def alter_replies(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """From here on this text of replies about devices and tasks is another."""
    honest = rest.answer_rpc

    def answer(services: VapiServices, body: bytes) -> tuple[int, bytes]:
        status, reply = honest(services, body)
        service = json.loads(body)["params"]["serviceId"]
        mine = service.endswith((".tasks", ".direct_path_devices"))
        return status, reply.replace(old.encode(), new.encode()) if mine else reply

    monkeypatch.setattr(rest, "answer_rpc", answer)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"current_mode": "VGPU_SAME_SIZE"', '"current_mode": ["HOST"]'),
        ('"vm_class": "vgpu-8q"', '"vm_class": null'),
        ('"total_memory": {"OPTIONAL": 49152}', '"total_memory": {"OPTIONAL": "much"}'),
        ('"configurable_modes": [', '"configurable_modes": [7, '),
    ],
)
def test_values_of_other_types_are_a_reason(site: Site, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    alter_replies(monkeypatch, old, new)
    settings = read_settings(site)
    assert settings.devices is None
    assert "does not return modes of devices" in settings.unread[0]


@pytest.mark.long
def test_words_and_ids_that_nobody_knows_are_shown_as_they_come(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    alter_replies(monkeypatch, "VGPU_SAME_SIZE", "VGPU_\\u202eANY")
    settings = read_settings(site)
    assert settings.devices is not None
    assert {device.mode for device in settings.devices} == {"host", "VGPU_\u202eANY"}
    monkeypatch.undo()
    alter_replies(monkeypatch, '"device": "0000:af', '"device": "vmhba')
    settings = read_settings(site)
    assert settings.devices is not None
    assert [device.address for device in settings.devices][-1] is None
    [outcome] = configure(MIXED, site, apply=True).outcomes
    assert outcome.reason == "esx-02.sup: vCenter lists no DirectPath device 0000:af:00.0"


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"configure_impacts": {"OPTIONAL": ["NONE"]}', '"configure_impacts": {"OPTIONAL": 5}'),
        ('"configure_impacts"', '"impacts"'),
        ('"status": "SUCCEEDED"', '"status": "PERHAPS"'),
    ],
)
def test_an_end_that_cannot_be_read_is_answered_by_looking(
    site: Site, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    from gpuops.vsphere import device_modes

    monkeypatch.setattr(device_modes, "TASK_S", 0.5)
    alter_replies(monkeypatch, old, new)
    report = configure(MIXED, site, apply=True)
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE]
    assert report.plan.afterwards[0].startswith("takes effect after a reboot"), "what it takes is not known"


@pytest.mark.long
def test_the_document_of_a_host_without_a_reply_says_why(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    strike(monkeypatch, REPLIES["HTML"], service="direct_path_devices")
    inventory, hosts = mode_show(site, Scope(host=HOST))
    [host] = mode_document(inventory, hosts).hosts
    assert host.devices is None
    assert "does not return modes of devices" in host.unread[0]
