"""Typed replies that leave out what every vCenter tells: exit code 5 or an unknown value, never an internal error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from gpuops.errors import GpuopsError, NotConnected
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.plan.core.steps import ConfigureGraphics, CreateVm, ReconfigureVm, VmChange
from gpuops.vsphere.connection import Connection
from tests.wire.hostile.hostile_server import HostileServer

pytestmark = pytest.mark.long

Rewrite = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def hostile_server() -> Iterator[HostileServer]:
    with HostileServer() as server:
        yield server


@pytest.fixture
def server(hostile_server: HostileServer) -> HostileServer:
    hostile_server.strikes, hostile_server.rewrites = {}, {}
    return hostile_server


def connect(server: HostileServer) -> Connection:
    honest = server.honest
    return Connection(Target("127.0.0.1", honest.username, Secret(honest.password), port=server.port, tls=False))


def without(name: str) -> Rewrite:
    """Every element of that name is left out."""
    pattern = re.compile(rf"<{name}(?: [^>]*)?(?:/>|>.*?</{name}>)".encode(), re.DOTALL)
    return lambda body: pattern.sub(b"", body)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("Fetch", "deviceId"),
        ("Fetch", "id"),
        ("Fetch", "configManager"),
        ("QueryModules", "name"),
        ("RetrieveVendorDeviceGroupInfo", "device"),
        ("RetrieveVendorDeviceGroupInfo", "componentDeviceInfo"),
        ("fetchSoftwarePackages", "name"),
    ],
)
def test_settings_of_hosts(server: HostileServer, method: str, name: str) -> None:
    with connect(server) as vcenter:
        before = vcenter.inventory()
        server.rewrites = {method: without(name)}
        refused_or_unknown(lambda: vcenter.hosts.with_settings(before, list(before.hosts)))


@pytest.mark.parametrize("name", ["pciDevice", "id", "vendorId", "componentDeviceInfo", "device", "backing"])
def test_what_hosts_offer(server: HostileServer, name: str) -> None:
    with connect(server) as vcenter:
        before = vcenter.inventory()
        server.rewrites = {"QueryConfigTarget": without(name)}
        refused_or_unknown(lambda: vcenter.with_config_targets(before, list(before.hosts)))


def refused_or_unknown(read: Callable[[], Inventory]) -> None:
    try:
        read()
    except NotConnected as refused:
        assert refused.exit_code == 5
        assert "reply to" in refused.message or "does not answer like a vCenter" in refused.message


@pytest.mark.parametrize("name", ["graphicsManager", "deviceId", "returnval"])
def test_a_change_of_graphics_that_cannot_be_told_apart_sends_nothing(server: HostileServer, name: str) -> None:
    with connect(server) as vcenter:
        before = vcenter.inventory()
        host = next(host for host in before.hosts.values() if host.gpus)
        settings = vcenter.hosts.with_settings(before, [host.ref]).hosts[host.ref].settings
        assert settings is not None
        assert settings.graphics is not None
        step = ConfigureGraphics(host.ref, settings.graphics, settings.graphics)
        server.rewrites = {"Fetch": without(name)}
        sent = len(server.honest.world.ledger)
        with pytest.raises(GpuopsError):
            vcenter.hosts.configure(step, before, "op-1")
        assert len(server.honest.world.ledger) == sent


@pytest.mark.long
def test_a_folder_that_is_its_own_parent_ends_the_making_of_a_vm(server: HostileServer) -> None:
    with connect(server) as vcenter:
        before = vcenter.inventory()
        host = next(iter(before.hosts.values()))
        store = next(iter(before.datastores.values()))
        place = next(folder.moid for folder in server.honest.world.by_type("Folder") if folder.name == "host").encode()
        above = re.compile(rb'type="Datacenter"([^>]*)>[^<]+')
        server.rewrites = {"Fetch": lambda body: above.sub(rb'type="Folder"\1>' + place, body)}
        with pytest.raises(NotConnected):
            vcenter.submit(CreateVm("new:lock", "lock", host.ref, host.name, store.name, "notes"), before, "op-1")


@pytest.mark.long
def test_devices_that_are_none_are_not_sent_back(server: HostileServer) -> None:
    with connect(server) as vcenter:
        before = vcenter.inventory()
        vm = next(vm for vm in before.vms.values() if vm.profiles)
        strings = b'<val xsi:type="ArrayOfString"><string>x</string></val>'
        pattern = re.compile(rb"<val .*?</val>", re.DOTALL)
        server.rewrites = {"RetrievePropertiesEx": lambda body: pattern.sub(strings, body)}
        step = ReconfigureVm(vm.ref, VmChange(remove=(4000,)))
        with pytest.raises(NotConnected, match="another object where a device belongs"):
            vcenter.submit(step, before, "op-1")
