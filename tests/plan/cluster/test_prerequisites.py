"""Why a cluster is not made, how its VMs are dealt out to hosts, and what somebody has changed of one since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.clusters.cluster_plan import (
    HUGE_PAGES,
    HostRoom,
    changes_by_admin,
    distribute_vms,
    refused_once,
    room_rejections,
)
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
from gpuops.model.workloads.cluster import Arrangement, ClusterWish, LatencyLevel, RdmaKind
from gpuops.plan.core.rejection import Rejection
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


WISH = ClusterWish("train", "golden", 9, 1, profile="a40-48c")
HOSTS = tuple(Host(f"host-{n}", f"esx-0{n}") for n in range(1, 6))
VM: Any = object()
"""Of the VMs that a host takes only the number counts."""


def row(host: Host, check: str, says: str, move: str) -> Prerequisite:
    return Prerequisite(host.name, check, False, says, move)


def refusal_lines(
    room: Mapping[str, HostRoom], rows: Iterable[Prerequisite] = ()
) -> tuple[tuple[Rejection, ...], list[str]]:
    """Every reason, and the lines."""
    hosts = [esx for esx in HOSTS if esx.ref in room]
    every = tuple(room_rejections(WISH, hosts, room, 9, tuple(rows)))
    return every, [rejection.line for rejection in refused_once(every)]


def test_too_little_room_is_one_line_with_the_reasons_of_all_hosts() -> None:
    locked = Rejection("esx-01 0000:3b:00.0", "locked", 1, 0, "slot")
    short = Rejection("esx-05", "memory to reserve", 64, 8, "MiB")
    room: dict[str, HostRoom] = {esx.ref: ((VM, VM), (locked,)) for esx in HOSTS[:1]}
    room |= {esx.ref: ((VM, VM), (Rejection(f"{esx.name} 0000:3b:00.0", "locked"),)) for esx in HOSTS[1:3]}
    room |= {HOSTS[4].ref: ((), (short,))}
    rows = [row(HOSTS[3], "uplink", "has no link", "cable"), row(HOSTS[3], "firewall", "closed", "open it")]
    every, lines = refusal_lines(room, rows)
    assert [rejection.subject for rejection in every] == [
        "train",
        "esx-01",
        "esx-02",
        "esx-03",
        "esx-05",
        "esx-04",
        "esx-04",
    ]
    assert lines == [
        (
            "train: VMs that hosts have room for: needs 9, 6 there; esx-01, esx-02, esx-03: takes 2 of the VMs, and "
            "has GPUs for no more; esx-05: takes none: memory to reserve: needs 64 MiB, 8 there; esx-04: uplink: has "
            "no link (next: ask for 6 nodes or fewer)"
        )
    ]


def test_vms_that_are_there_count_among_the_nodes_to_ask_for() -> None:
    room: dict[str, HostRoom] = {HOSTS[0].ref: ((VM, VM), (Rejection("esx-01 0000:3b:00.0", "locked"),))}
    first, *_ = room_rejections(WISH, HOSTS[:1], room, 5, ())
    assert first.line == "train: VMs that hosts have room for: needs 5, 2 there (next: ask for 6 nodes or fewer)"


def test_where_no_host_takes_one_the_next_move_is_not_fewer_nodes() -> None:
    no_datastore = Rejection("esx-01", "has no datastore 'x' that this login can see")
    _, lines = refusal_lines({HOSTS[0].ref: ((), (no_datastore,))})
    assert lines == [
        (
            "train: VMs that hosts have room for: needs 9, 0 there; esx-01: takes none: has no datastore 'x' that this "
            "login can see (next: change in the file what each VM gets: gpus, cpus, memory, datastore)"
        )
    ]
    rooms = {
        esx.ref: ((), (Rejection(f"{esx.name} 0000:{bus}:00.0", f"locked; held by {bus}", hint="free it"),))
        for esx, bus in zip(HOSTS, ("3b", "5e", "af", "d8", "0b"), strict=True)
    }
    _, lines = refusal_lines(rooms)
    assert lines == [
        (
            "train: VMs that hosts have room for: needs 9, 0 there; esx-01: takes none: 0000:3b:00.0: locked; held "
            "by 3b (also esx-02, esx-03, esx-04 and 1 more) (next: free it)"
        )
    ]


def test_where_every_host_fails_its_checks_these_are_said_and_not_the_room() -> None:
    rows = [row(esx, "uplink", f"vmnic{n} of switch dvs has no RDMA device", "other") for n, esx in enumerate(HOSTS)]
    rows += [row(esx, "VMkernel adapter", "is not on switch dvs", "tag one") for esx in HOSTS]
    every, lines = refusal_lines({}, rows)
    assert len(every) == 1 + 2 * len(HOSTS)
    assert lines == [
        (
            "esx-01: uplink: vmnic0 of switch dvs has no RDMA device (also esx-02, esx-03, "
            "esx-04 and 1 more) (next: other)"
        )
    ]
    tags = [row(HOSTS[0], "adapter", "none is tagged", "tag one"), row(HOSTS[1], "adapter", "is elsewhere", "tag one")]
    _, lines = refusal_lines({}, [*tags, row(HOSTS[2], "uplink", "has no link", "cable")])
    assert lines == [
        "esx-01: adapter: none is tagged; esx-02: adapter: is elsewhere (next: tag one)",
        "esx-03: uplink: has no link (next: cable)",
    ]


def test_no_host_at_all_is_a_reason() -> None:
    _, [line] = refusal_lines({})
    assert line.startswith("train: no host that can be reached has GPUs and sees a datastore of the template (next: ")


def test_everything_else_is_said_once() -> None:
    foreign_nodes = [Rejection(f"train-0{n}", "is of another cluster", hint="remove it") for n in range(2)]
    assert [rejection.line for rejection in refused_once(foreign_nodes)] == [
        "train-00, train-01: is of another cluster (next: remove it)"
    ]
    assert refused_once(()) == ()


ROOM = st.dictionaries(st.sampled_from([f"host-{n}" for n in range(6)]), st.integers(0, 5), min_size=1)


@given(ROOM, st.integers(1, 20), st.sampled_from(Arrangement))
def test_all_have_a_place_where_there_is_room_or_none_has(
    room: dict[str, int], number: int, arrangement: Arrangement
) -> None:
    counts = distribute_vms(arrangement, room, {}, number)
    if sum(room.values()) < number:
        assert counts is None
        return
    assert counts is not None
    assert sum(counts.values()) == number
    assert all(0 < count <= room[host] for host, count in counts.items())


@given(ROOM, st.integers(1, 20))
def test_packed_takes_as_few_hosts_as_hold_them(room: dict[str, int], count: int) -> None:
    counts = distribute_vms(Arrangement.PACKED, room, {}, count)
    if counts is None:
        return
    fewest = next(
        n for n in range(1, 7) if any(sum(combination) >= count for combination in combinations(room.values(), n))
    )
    assert len(counts) == fewest


@given(ROOM, st.integers(1, 20))
def test_spread_has_no_two_hosts_that_could_be_evened_out(room: dict[str, int], number: int) -> None:
    counts = distribute_vms(Arrangement.SPREAD, room, {}, number)
    if counts is None:
        return
    full = {host: counts.get(host, 0) for host in room}
    for count in full.values():
        assert all(count <= full[other_host] + 1 for other_host in room if full[other_host] < room[other_host])


def test_what_is_missing_goes_beside_what_is_there() -> None:
    assert distribute_vms(Arrangement.PACKED, {"a": 4, "b": 2}, {"b": 1}, 2) == {"b": 2}
    assert distribute_vms(Arrangement.SPREAD, {"a": 4, "b": 2}, {"b": 1}, 2) == {"a": 2}


def test_packed_ends_on_the_smallest_host_that_holds_the_rest() -> None:
    assert distribute_vms(Arrangement.PACKED, {"a": 2, "b": 4, "c": 3}, {}, 5) == {"b": 4, "a": 1}
    assert distribute_vms(Arrangement.SPREAD, {"a": 2, "b": 4, "c": 3}, {}, 5) == {"b": 2, "c": 2, "a": 1}


EDITED_WISH = ClusterWish(
    "train", "trainer", 2, 1, profile="a100d-80c", cpus=16, memory_mib=65536, huge_pages=True, latency=LatencyLevel.HIGH
)

EDITED_HOST = Host("host-1", "esx-01", cpu_mhz=2000)

AS_MADE = Vm(
    "vm-1",
    "train-00",
    vcpus=16,
    memory_mib=65536,
    memory_reservation_mib=65536,
    cpu_reservation_mhz=32000,
    extra_config={HUGE_PAGES: "TRUE"},
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vcpus": 8}, "has 8 vCPUs, and the file says 16"),
        ({"memory_mib": 32768}, "has 32768 MiB of memory, and the file says 65536"),
        ({"memory_reservation_mib": 0}, "has 0 MiB of its 65536 MiB of memory reserved"),
        ({"extra_config": {HUGE_PAGES: "FALSE"}}, "has no pages of 1 GiB"),
        ({"cpu_reservation_mhz": 0}, "has 0 of 32000 MHz reserved"),
    ],
)
def test_each_change_is_said(change: dict[str, Any], message: str) -> None:
    [line] = changes_by_admin(EDITED_WISH, replace(AS_MADE, **change), EDITED_HOST)
    assert line.startswith(f"train-00: {message}")


@pytest.mark.parametrize("vm", [AS_MADE, Vm("vm-1", "train-00")], ids=["as made", "not to be read"])
def test_nothing_is_said_of_what_is_as_it_was_made_or_unknown(vm: Vm) -> None:
    assert list(changes_by_admin(EDITED_WISH, vm, EDITED_HOST)) == []


def test_what_the_file_leaves_to_the_template_may_be_anything() -> None:
    open_wish = replace(EDITED_WISH, cpus=None, memory_mib=None, huge_pages=False, latency=LatencyLevel.NORMAL)
    assert (
        list(
            changes_by_admin(open_wish, replace(AS_MADE, vcpus=2, extra_config={}, cpu_reservation_mhz=0), EDITED_HOST)
        )
        == []
    )
