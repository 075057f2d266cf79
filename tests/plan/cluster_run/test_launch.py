"""The command lines of launchers, word by word as the documentation of each has them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.clusters import launch as launch_module
from gpuops.extras.clusters.launch import Launch, common_network, hostfile, plan_launch
from gpuops.extras.clusters.run_request import Launcher, Rendezvous, RunWish, Transport
from gpuops.model.workloads.cluster import Member, TrainingCluster

MEMBERS = tuple(
    Member(f"vm-{rank}", f"train-{rank:02}", "esx-01", 4, f"10.1.2.{11 + rank}", "pvrdma") for rank in range(3)
)
CLUSTER = TrainingCluster("train", MEMBERS)
TRAIN = ("python", "train.py")


def launch(*command: str, cluster: TrainingCluster = CLUSTER, **options: Any) -> Launch:
    planned = plan_launch(RunWish(command or TRAIN, **options), cluster, "r1")
    assert planned.launch is not None, planned.rejections
    return planned.launch


def words(plan: Launch, node: int = 0) -> list[str]:
    return shlex.split(plan.command_lines[node])


def test_mpirun_as_its_manual_page_has_it() -> None:
    """https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php: `mpirun [ -np X ] [ --hostfile <filename> ] <program>`."""
    plan = launch()
    assert words(plan) == [
        *("mpirun", "-np", "12", "--hostfile", ".gpuops-cluster/train/r1/hostfile"),
        *("--bind-to", "none", "--map-by", "slot"),
        *("--mca", "plm_rsh_no_tree_spawn", "1"),
        *("-x", "GPUOPS_CLUSTER_RUN", "-x", "PYTHONUNBUFFERED"),
        *TRAIN,
    ]
    assert plan.over_ssh and len(plan.command_lines) == 1


@pytest.mark.parametrize(
    ("transport", "argument"),
    [
        # https://www.open-mpi.org/faq/?category=tcp: btl_tcp_if_include with a network in CIDR notation
        (Transport.TCP, "--mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include 10.1.2.8/29"),
        # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/ib-and-roce.html: --mca pml ucx
        (Transport.RDMA, "--mca pml ucx"),
    ],
)
def test_mpirun_is_told_the_transport_and_tells_every_rank(transport: Transport, argument: str) -> None:
    plan = launch(transport=transport)
    assert argument in plan.command_lines[0]
    assert all(f"-x {name}" in plan.command_lines[0] for name in plan.environment)
    expected_environment = {Transport.TCP: ("1", "Socket", None), Transport.RDMA: ("0", "IB", "^tcp")}[transport]
    assert tuple(map(plan.environment.get, ("NCCL_IB_DISABLE", "NCCL_NET", "UCX_TLS"))) == expected_environment


def test_the_hostfile_of_horovodrun_and_mpirun() -> None:
    """https://horovod.readthedocs.io/en/stable/running.html: `aa slots=2`; `horovodrun -np 6 --hostfile myhostfile
    python train.py`."""
    plan = launch(launcher=Launcher.HOROVODRUN)
    assert plan.hostfile == "10.1.2.11 slots=4\n10.1.2.12 slots=4\n10.1.2.13 slots=4\n"
    file = ".gpuops-cluster/train/r1/hostfile"
    assert words(plan) == ["horovodrun", "-np", "12", "--hostfile", file, "--disable-cache", *TRAIN]


OPTIONS = {
    Launcher.TORCHRUN: {
        "https://docs.pytorch.org/docs/stable/elastic/run.html": {
            *("--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port"),
            *("--rdzv-id", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--local-addr"),
        },
    },
    Launcher.HOROVODRUN: {
        "https://horovod.readthedocs.io/en/stable/running.html": {"-np", "--hostfile"},
        "https://github.com/horovod/horovod/blob/master/horovod/runner/launch.py": {"--disable-cache"},
    },
    Launcher.MPIRUN: {
        "https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php": {
            *("-np", "--hostfile", "--bind-to", "--map-by", "--mca", "-x"),
        },
    },
}


@pytest.mark.parametrize("launcher", Launcher)
def test_every_option_of_a_launcher_has_a_page_which_the_source_names(launcher: Launcher) -> None:
    shapes = [(way, transport) for way in Rendezvous for transport in (None, *Transport)]
    options_named = {
        word.partition("=")[0]
        for way, transport in shapes
        for node in launch("x", launcher=launcher, rendezvous=way, transport=transport).command_lines
        for word in shlex.split(node)
        if word.startswith("-")
    }
    assert options_named == set[str]().union(*OPTIONS[launcher].values())
    source = (launch_module.__doc__ or "").replace("\n", " ")
    for page, options in OPTIONS[launcher].items():
        assert page in source
        assert all(option in source for option in options), page


def test_torchrun_on_every_node() -> None:
    """https://docs.pytorch.org/docs/stable/elastic/run.html: `torchrun --nnodes=$NUM_NODES
    --nproc-per-node=$NUM_TRAINERS --rdzv-id=$JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$HOST_NODE_ADDR
    YOUR_TRAINING_SCRIPT.py`; without a backend it is static, with `--node-rank`, `--master-addr`, `--master-port`."""
    static = launch("train.py", launcher=Launcher.TORCHRUN)
    assert [words(static, node) for node in range(3)] == [
        [
            *("torchrun", "--nnodes=3", "--nproc-per-node=4", f"--node-rank={node}"),
            *("--master-addr=10.1.2.11", "--master-port=29500", "train.py"),
        ]
        for node in range(3)
    ]
    c10d = launch("train.py", launcher=Launcher.TORCHRUN, rendezvous=Rendezvous.C10D)
    rdzv = "--rdzv-id=r1 --rdzv-backend=c10d --rdzv-endpoint=10.1.2.11:29500"
    assert list(c10d.command_lines) == [
        f"torchrun --nnodes=3 --nproc-per-node=4 {rdzv} --rdzv-conf=is_host={host} --local-addr={addr} train.py"
        for host, addr in ((1, "10.1.2.11"), (0, "10.1.2.12"), (0, "10.1.2.13"))
    ]
    assert not c10d.over_ssh


def test_fewer_ranks_fill_the_first_nodes_and_leave_the_others_out() -> None:
    plan = launch(ranks=6)
    assert (plan.ranks, plan.slots, [member.name for member in plan.members]) == (6, (4, 2), ["train-00", "train-01"])
    assert plan.unused == (MEMBERS[2],), "where an earlier run may have left something"
    torch = launch("train.py", ranks=6, launcher=Launcher.TORCHRUN)
    assert [words(torch, node)[1:3] for node in range(2)] == [
        ["--nnodes=2", "--nproc-per-node=4"],
        ["--nnodes=2", "--nproc-per-node=2"],
    ]


def test_every_reason_against_a_run_is_told_and_nothing_is_launched() -> None:
    broken = replace(MEMBERS[1], address=None, rdma=None, gpus=0)
    planned = plan_launch(
        RunWish((), transport=Transport.RDMA, ranks=9), TrainingCluster("train", (MEMBERS[0], broken)), "r"
    )
    assert planned.launch is None
    assert [str(rejection) for rejection in planned.rejections] == [
        "train-01: its guest reports no IP address",
        "train-01: it has no GPU",
        "train-01: it has no RDMA network card",
        "train: more ranks than GPUs: needs 9 GPUs, 4 there",
        "train: no program is named",
    ]


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.11 slots=99\n10.6.6.6",
        "$(reboot)",
        "fe80::1",
        "169.254.3.4",
        "0.0.0.0",
        "\x1b[2J",
        "fd00::1%\nevil.example.com slots=8",
        "fd00::1%eth0",
        "127.0.0.1",
        "::1",
        "255.255.255.255",
    ],
)
def test_an_address_by_which_nobody_reaches_a_guest_is_refused_and_not_shown(address: str) -> None:
    cluster = TrainingCluster("train", (MEMBERS[0], replace(MEMBERS[1], address=address)))
    for launcher in Launcher:
        planned = plan_launch(RunWish(TRAIN, launcher, Transport.TCP), cluster, "r")
        reasons = ["train-01: its guest reports an address that other guests cannot reach"]
        assert (planned.launch, [str(rejection) for rejection in planned.rejections]) == (None, reasons)


def test_two_guests_with_one_address_are_refused() -> None:
    cluster = TrainingCluster("train", (*MEMBERS[:2], replace(MEMBERS[2], address=MEMBERS[0].address)))
    planned = plan_launch(RunWish(TRAIN), cluster, "r")
    assert [str(rejection) for rejection in planned.rejections] == ["train: train-00, train-02 report the same address"]


def test_one_address_in_two_spellings_is_refused_too() -> None:
    two = (replace(MEMBERS[0], address="fd00::1"), replace(MEMBERS[1], address="fd00:0:0::0001"))
    planned = plan_launch(RunWish(TRAIN), TrainingCluster("train", two), "r")
    assert [str(rejection) for rejection in planned.rejections] == ["train: train-00, train-01 report the same address"]


def test_an_ipv6_address_of_the_first_node_stands_in_brackets_to_torchrun() -> None:
    """https://docs.pytorch.org/docs/stable/elastic/run.html, `--master-addr`: "IPv6 should have the pattern
    [0:0:0:0:0:0:0:1]"."""
    six = TrainingCluster(
        "train", tuple(replace(member, address=f"fd00::{at}") for at, member in enumerate(MEMBERS, 1))
    )
    assert "--master-addr=[fd00::1]" in words(launch("x", launcher=Launcher.TORCHRUN, cluster=six), 1)
    c10d = words(launch("x", launcher=Launcher.TORCHRUN, cluster=six, rendezvous=Rendezvous.C10D), 1)
    assert "--rdzv-endpoint=[fd00::1]:29500" in c10d and "--local-addr=fd00::2" in c10d


def test_ipv6_addresses_name_no_network_to_open_mpi() -> None:
    six = tuple(replace(member, address=f"fd00::{rank}") for rank, member in enumerate(MEMBERS, 1))
    assert "if_include" not in launch(cluster=TrainingCluster("train", six), transport=Transport.TCP).command_lines[0]


def test_what_is_typed_stays_the_words_that_it_was() -> None:
    odd = ("sh", "-c", "echo $HOME; rm 'x y'", "--bind-to", "*", "")
    assert words(launch(*odd))[-len(odd) :] == list(odd)


def test_a_name_with_other_characters_is_one_word_of_a_path() -> None:
    plan = launch(cluster=TrainingCluster("a b/../c;d", MEMBERS))
    assert plan.directory == ".gpuops-cluster/a_b_.._c_d/r1"


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.1.2.11"], "10.1.2.11/32"),
        (["10.1.2.11", "10.1.2.12"], "10.1.2.8/29"),
        (["127.64.0.7", "127.65.1.2"], "127.0.0.0/8"),
    ],
)
def test_the_network_of_addresses(addresses: list[str], network: str) -> None:
    assert common_network(addresses) == network


@given(st.lists(st.integers(1, 8), min_size=1, max_size=8), st.integers(1, 64))
def test_slots_are_never_more_than_gpus_and_are_as_many_as_the_ranks(gpus: list[int], ranks: int) -> None:
    members = tuple(
        replace(MEMBERS[0], vm=f"vm-{at}", address=f"10.1.2.{at}", gpus=count) for at, count in enumerate(gpus)
    )
    plan = plan_launch(RunWish(TRAIN, ranks=ranks), TrainingCluster("train", members), "r").launch
    if ranks > sum(gpus):
        assert plan is None
        return
    assert plan is not None and sum(plan.slots) == plan.ranks == ranks
    assert all(0 < slots <= member.gpus for slots, member in zip(plan.slots, plan.members, strict=True))
    assert hostfile(plan.members, plan.slots).count("\n") == len(plan.members)
