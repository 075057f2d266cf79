"""What template and hosts must have for a cluster, row by row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.extras.clusters.one_vm import ClusterNetwork, host_rows, is_linux_64, network_of, template_rows
from gpuops.model.devices.other_device import (
    DistributedPortGroup,
    DistributedSwitch,
    HostRdma,
    Networks,
    PhysicalNic,
    RdmaDevice,
    VmkernelAdapter,
)
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Firmware, OtherPassthrough, Vm, VmNic
from gpuops.model.workloads.cluster import ClusterWish, RdmaKind
from gpuops.plan.hosts.pvrdma import Prerequisite

HOST = Host("host-1", "esx-01")
SWITCH = DistributedSwitch("dvs-1", "dvs", "uuid-1", mtu=9000, uplinks={"host-1": ("vmnic4",)})
GROUP = DistributedPortGroup("pg-1", "rdma", "key-1", "uuid-1")
NETWORK = ClusterNetwork(GROUP, SWITCH)
READY = HostRdma(
    devices=(RdmaDevice("vmrdma0", uplink="vmnic4", roce_v2=True, link_up=True),),
    nics=(PhysicalNic("vmnic4", functions=2),),
    adapters=(VmkernelAdapter("vmk2", "uuid-1", 9000),),
    tagged="vmk2",
    firewall_open=True,
)
PVRDMA = ClusterWish("train", "golden", 2, 1, profile="a40-48c", rdma=RdmaKind.PVRDMA, port_group="rdma")
SRIOV = replace(PVRDMA, rdma=RdmaKind.SRIOV)
TEMPLATE = Vm("vm-1", "golden", firmware=Firmware.EFI, hardware_version=20, devices=(), template=True)


def inventory(*vms: Vm) -> Inventory:
    now = datetime(2026, 11, 2, tzinfo=UTC)
    return Inventory("uuid", "8.0.3.0", now, {"host-1": HOST}, {vm.ref: vm for vm in vms})


def bad(rows: Any) -> list[tuple[str, str]]:
    """Check and state of the rows that do not pass; each of them has a next move."""
    failed_rows = [row for row in rows if row.passed is not True]
    assert all(row.next_move for row in failed_rows)
    return [(row.check, row.state) for row in failed_rows]


def test_a_host_that_has_all_of_it_passes() -> None:
    networks = Networks((SWITCH,), (GROUP,), {"host-1": READY})
    assert bad(host_rows(PVRDMA, HOST, NETWORK, networks, inventory())) == []
    assert bad(host_rows(SRIOV, HOST, NETWORK, networks, inventory())) == []
    assert bad(host_rows(replace(PVRDMA, rdma=RdmaKind.NONE), HOST, None, Networks(), inventory())) == []


@pytest.mark.parametrize(
    ("change", "uplinks", "expected"),
    [
        ({"tagged": None}, ("vmnic4",), [("VMkernel adapter", "fail"), ("MTU", "unknown")]),
        ({"tagged": "vmk9"}, ("vmnic4",), [("VMkernel adapter", "fail"), ("MTU", "unknown")]),
        ({"adapters": (VmkernelAdapter("vmk2", "other", 9000),)}, ("vmnic4",), [("VMkernel adapter", "fail")]),
        ({"adapters": (VmkernelAdapter("vmk2", "uuid-1", 9001),)}, ("vmnic4",), [("MTU", "fail")]),
        ({"firewall_open": False}, ("vmnic4",), [("firewall", "fail")]),
        ({"firewall_open": None}, ("vmnic4",), [("firewall", "unknown")]),
        ({"devices": ()}, ("vmnic4",), [("uplink", "fail")]),
        ({"devices": (RdmaDevice("vmrdma0", uplink="vmnic4"),)}, ("vmnic4",), [("uplink", "fail")]),
        (
            {"devices": (RdmaDevice("vmrdma0", uplink="vmnic4", roce_v1=True, link_up=False),)},
            ("vmnic4",),
            [("uplink", "fail")],
        ),
        ({}, ("vmnic4", "vmnic5"), [("uplink", "fail")]),
        ({}, (), [("uplink", "fail")]),
    ],
)
def test_what_a_host_lacks_for_paravirtual_rdma_is_said(
    change: dict[str, Any], uplinks: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    network = ClusterNetwork(GROUP, replace(SWITCH, uplinks={"host-1": uplinks}))
    networks = Networks((network.switch,), (GROUP,), {"host-1": replace(READY, **change)})
    assert bad(host_rows(PVRDMA, HOST, network, networks, inventory())) == expected


def test_a_host_whose_network_cannot_be_read_is_unknown() -> None:
    assert bad(host_rows(PVRDMA, HOST, NETWORK, Networks(), inventory())) == [("network", "unknown")]


def test_virtual_functions_of_vms_on_the_host_are_not_free() -> None:
    networks = Networks((SWITCH,), (GROUP,), {"host-1": READY})
    nic = VmNic(4000, "sriov", "key-1")
    first, two = (Vm(f"vm-{n}", f"v{n}", host="host-1", nics=(nic,)) for n in (2, 3))
    [row] = host_rows(SRIOV, HOST, NETWORK, networks, inventory(first))
    assert (row.passed, row.says) == (True, "vmnic4: 1 free virtual functions")
    [row] = host_rows(SRIOV, HOST, NETWORK, networks, inventory(first, two))
    assert (row.passed, row.says) == (False, "vmnic4 has no free virtual function")
    elsewhere = replace(two, nics=(replace(nic, network="other"),))
    [row] = host_rows(SRIOV, HOST, NETWORK, networks, inventory(first, elsewhere))
    assert row.passed is True


@pytest.mark.parametrize(
    ("change", "made_for", "expected"),
    [
        ({}, "ubuntu64Guest", []),
        ({"firmware": Firmware.BIOS}, "ubuntu64Guest", [("firmware", "fail")]),
        ({"firmware": None}, "ubuntu64Guest", [("firmware", "unknown")]),
        ({"hardware_version": 12}, "ubuntu64Guest", [("virtual hardware", "fail")]),
        ({"hardware_version": 13}, "ubuntu64Guest", []),
        ({"hardware_version": None}, "ubuntu64Guest", [("virtual hardware", "unknown")]),
        ({}, "windows2019srv_64Guest", [("guest", "fail")]),
        ({}, "rhel7Guest", [("guest", "fail")]),
        ({}, "", [("guest", "unknown")]),
        ({"devices": (OtherPassthrough(1, "x"),)}, "ubuntu64Guest", [("devices", "fail")]),
    ],
)
def test_what_a_template_lacks_is_said(change: dict[str, Any], made_for: str, expected: list[tuple[str, str]]) -> None:
    assert bad(template_rows(PVRDMA, replace(TEMPLATE, **change), made_for)) == expected


@pytest.mark.parametrize(
    ("made_for", "expected"),
    [
        ("ubuntu64Guest", True),
        ("rhel9_64Guest", True),
        ("other5xLinux64Guest", True),
        ("vmwarePhoton64Guest", True),
        ("ubuntuGuest", False),
        ("windows11_64Guest", False),
        ("freebsd13_64Guest", False),
    ],
)
def test_guest_ids_of_64_bit_linux(made_for: str, *, expected: bool) -> None:
    assert is_linux_64(made_for) is expected


def test_a_port_group_is_meant_by_its_name_alone() -> None:
    networks = Networks((SWITCH,), (GROUP,))
    assert network_of(PVRDMA, networks) == NETWORK
    for known_networks in (
        Networks(),
        Networks((SWITCH,), (GROUP, replace(GROUP, ref="pg-2"))),
        Networks((), (GROUP,)),
    ):
        row = network_of(PVRDMA, known_networks)
        assert isinstance(row, Prerequisite)
        assert row.passed is not True
