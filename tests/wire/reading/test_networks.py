"""Distributed switches, RDMA devices and network cards of VMs, as they are read over the wire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.other_device import Networks, PhysicalNic, RdmaDevice, VmkernelAdapter
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import ADMIN, NO_ACCESS
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

HOSTS = [f"esx-{number:02}.trn" for number in range(1, 5)]


@pytest.fixture
def training(serve: Callable[[str], SimServer]) -> SimServer:
    return serve("training")


def read(server: SimServer) -> Networks:
    with Connection(target_of(server)) as connection:
        return connection.networks()


def refs(server: SimServer) -> dict[str, str]:
    return {host.name: host.moid for host in server.world.by_type("HostSystem")}


@pytest.mark.long
def test_switches_and_their_port_groups_are_read_without_uplink_groups(training: SimServer) -> None:
    networks, named = read(training), refs(training)
    assert [(switch.name, switch.mtu, switch.version) for switch in networks.switches] == [
        ("dvs-rdma", 9000, "8.0.3"), ("dvs-sriov", 9000, "8.0.3")
    ]  # fmt: skip
    rdma, sriov = networks.switches
    assert rdma.uplinks == {named[host]: ("vmnic2",) for host in HOSTS}
    assert sriov.uplinks == {named[host]: ("vmnic3",) for host in HOSTS}
    assert [(group.name, group.switch, group.key) for group in networks.port_groups] == [
        (name, switch.uuid, port_group.ref)
        for (name, switch), port_group in zip(
            [("rdma-vmk", rdma), ("rdma-vm", rdma), ("sriov-vm", sriov)], networks.port_groups, strict=True
        )
    ]


@pytest.mark.long
def test_hosts_are_read_with_what_they_have_for_rdma(training: SimServer) -> None:
    networks, named = read(training), refs(training)
    assert set(networks.hosts) == set(named.values())
    first = networks.hosts[named["esx-01.trn"]]
    assert first.devices == (
        RdmaDevice("vmrdma0", "nmlx5_rdma", "vmnic2", roce_v1=True, roce_v2=True, link_up=True),
        RdmaDevice("vmrdma1", "nmlx5_rdma", "vmnic3", roce_v1=True, roce_v2=True, link_up=True),
    )
    assert first.nics == (
        PhysicalNic("vmnic0", PciAddress.parse("0000:31:00.0"), 25_000, None, 0),
        PhysicalNic("vmnic1", PciAddress.parse("0000:31:00.1"), 25_000, None, 0),
        PhysicalNic("vmnic2", PciAddress.parse("0000:4b:00.0"), 100_000, 0, 0),
        PhysicalNic("vmnic3", PciAddress.parse("0000:9b:00.0"), 100_000, 8, 1),
    )
    assert first.adapters == (
        VmkernelAdapter("vmk0", None, 1500),
        VmkernelAdapter("vmk1", networks.switches[0].uuid, 9000),
    )
    assert [(networks.hosts[named[host]].tagged, networks.hosts[named[host]].firewall_open) for host in HOSTS] == [
        ("vmk1", True), ("vmk1", True), ("vmk1", True), (None, False)
    ]  # fmt: skip


def test_a_vcenter_without_either_has_none(lab: SimServer) -> None:
    networks = read(lab)
    assert (networks.switches, networks.port_groups) == ((), ())
    assert [(host.devices, len(host.nics), host.tagged, host.firewall_open) for host in networks.hosts.values()] == [
        ((), 2, None, None), ((), 2, None, None)
    ]  # fmt: skip


@pytest.mark.long
def test_they_are_the_same_over_vi_json(training: SimServer) -> None:
    with Connection(target_of(training)) as connection:
        over_soap = connection.networks()
        connection.read_over_vi_json(alone=True)
        assert connection.networks() == over_soap
        assert connection.vi_json is not None


@pytest.mark.long
def test_a_login_that_may_not_read_a_host_does_not_know_its_network(training: SimServer) -> None:
    host = next(training.world.by_type("HostSystem"))
    with Connection(target_of(training)) as connection:
        authority = training.world.authority
        authority.permit(training.username, ADMIN)
        authority.permit(training.username, NO_ACCESS, host.moid)
        networks = connection.networks()
    assert host.moid not in networks.hosts
    assert len(networks.hosts) == 3


@pytest.mark.long
def test_it_takes_the_same_requests_however_many_hosts_there_are(serve: Callable[[str], SimServer]) -> None:
    def calls(scenario: str) -> int:
        server = serve(scenario)
        with Connection(target_of(server)) as connection:
            connection.networks()  # which makes the view, and keeps it
            [login] = server.world.sessions
            before = login.calls
            connection.networks()
            return int(login.calls) - int(before)

    assert calls("fleet:hosts=20,vms=20") == calls("fleet:hosts=40,vms=20") == 1
    assert calls("training") == 2
