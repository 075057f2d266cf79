"""Why a cluster is not made: host by host, and one line for each thing wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuops.extras.clusters.plan import HostRoom, no_room, refused_once
from gpuops.model.vcenter.host import Host
from gpuops.model.workloads.cluster import ClusterWish
from gpuops.plan.core.plan import Rejection
from gpuops.plan.hosts.pvrdma import Prerequisite

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
    every = tuple(no_room(WISH, hosts, room, 9, tuple(rows)))
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
            "train: VMs that hosts have room for: needs 9, 6 there; esx-01, esx-02, esx-03: takes 2 of them, and has "
            "GPUs for no more; esx-05: takes none: memory to reserve: needs 64 MiB, 8 there; esx-04: uplink: has no "
            "link (next: ask for 6 nodes or fewer)"
        )
    ]


def test_vms_that_are_there_count_among_the_nodes_to_ask_for() -> None:
    room: dict[str, HostRoom] = {HOSTS[0].ref: ((VM, VM), (Rejection("esx-01 0000:3b:00.0", "locked"),))}
    first, *_ = no_room(WISH, HOSTS[:1], room, 5, ())
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
