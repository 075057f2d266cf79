"""Clusters of whole GPUs (Dynamic DirectPath I/O), with each kind of RDMA network card: made, run over and removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.extras.clusters import cluster_runs
from gpuops.extras.clusters.cluster_members import marked_vms
from gpuops.extras.clusters.cluster_runs import running_cluster
from gpuops.extras.clusters.creating import create_cluster
from gpuops.extras.clusters.existing import delete_cluster
from gpuops.extras.clusters.launch import plan_launch
from gpuops.extras.clusters.run import used_alone
from gpuops.extras.clusters.run_request import Launcher, RunWish, Transport
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, PowerState, VmDrs
from gpuops.model.workloads.cluster import Arrangement, ClusterWish, RdmaKind
from gpuops.sim.server import SimServer, start
from gpuops.vsphere.connection import Connection
from tests.cluster_guests import NAME
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

SCENARIO = Path(__file__).parents[3] / "gpuops" / "sim" / "scenarios" / "training.yaml"
WISH = ClusterWish(NAME, "trainer", nodes=2, gpus=2, model="l40s", placement=Arrangement.SPREAD)
CARDS = {
    "none": WISH,
    "pvrdma": replace(WISH, rdma=RdmaKind.PVRDMA, port_group="rdma-vm"),
    "sriov": replace(WISH, rdma=RdmaKind.SRIOV, port_group="sriov-vm"),
    "directpath": replace(WISH, rdma=RdmaKind.DIRECTPATH, device="15b3:101d"),
}


@contextmanager
def whole_gpus(folder: Path) -> Iterator[tuple[SimServer, Site]]:
    """The scenario `training` with L40S for DirectPath I/O in place of its GPUs, and guests that run real programs."""
    scenario = yaml.safe_load(SCENARIO.read_text(encoding="utf-8"))
    trainer = {key: scenario["guests"]["trainer"][key] for key in ("id", "name", "login")}
    scenario["guests"]["trainer"] = {**trainer, "processes": "real"}
    for host in scenario["clusters"][0]["hosts"]:
        host["gpus"] = [{**gpu, "board": "l40s", "passthrough": True} for gpu in host["gpus"]]
    file = folder / "whole.yaml"
    file.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    with start(str(file), clock="virtual") as server:
        target = replace(target_of(server), guest=GuestLogin("ml", Secret("Kept4now")))
        with Connection(target) as connection:
            yield server, Site(connection, folder / "state", wall_clock)
        assert server.world.bugs == []


def held_addresses(server: SimServer) -> dict[str, list[str]]:
    """The addresses of the devices that each VM holds."""
    with server.world.lock:
        return {vm.moid: [address for _, address in vm.state.held] for vm in server.world.by_type("VirtualMachine")}


@pytest.mark.parametrize("card", CARDS)
def test_a_cluster_of_whole_gpus_is_made_run_over_and_removed(tmp_path: Path, card: str) -> None:
    wish, heard = CARDS[card], list[bytes]()
    with whole_gpus(tmp_path) as (server, site):
        report = create_cluster(wish, site, apply=True, keep=False, consent=lambda plan: None)
        assert (report.exit_code, report.failed) == (0, ""), [rejection.line for rejection in report.plan.rejections]
        inventory = site.vcenter.inventory()
        members = marked_vms(inventory, NAME)
        assert len({member.vm.host for member in members}) == 2, "they are spread"
        for member in members:
            kinds = [type(device) for device in member.vm.devices or ()]
            assert kinds.count(DynamicDevice) == 2
            assert kinds.count(DirectPathDevice) == (card == "directpath")
            assert (member.vm.power, inventory.drs_of(member.vm)) == (PowerState.ON, VmDrs.MANUAL)
            assert member.vm.memory_reservation_mib == member.vm.memory_mib
            host = inventory.host_of(member.vm)
            assert host is not None
            gpus = {str(gpu.address) for gpu in host.gpus}
            assert len(gpus & set(held_addresses(server)[member.vm.ref])) == 2
        second_run = create_cluster(wish, site, apply=True, keep=False, consent=lambda plan: pytest.fail("asked"))
        assert (second_run.exit_code, second_run.changed) == (0, False)

        cluster = running_cluster(NAME, site)
        transport = Transport.TCP if card == "none" else Transport.RDMA
        plan = plan_launch(RunWish(("train.py",), Launcher.TORCHRUN, transport), cluster, "0123456789abcdef")
        assert plan.launch is not None, plan.rejections
        for member in members:
            tool = server.world.guests.guest(member.vm.ref).root / "root/torchrun"
            tool.write_text('#!/bin/sh\necho "$2" over $NCCL_NET\n', encoding="utf-8")
            tool.chmod(0o700)
        launch = replace(plan.launch, command_lines=tuple(f"./{line}" for line in plan.launch.command_lines))
        with used_alone(site, cluster, "cluster run") as lease:
            end = cluster_runs.run(launch, site, lease, heard.append)
        assert (end.exit_code, end.left) == (0, ())
        network = {Transport.TCP: "Socket", Transport.RDMA: "IB"}[transport]
        assert b"".join(heard).decode() == f"--nproc-per-node=2 over {network}\n"

        removed = delete_cluster(NAME, site, apply=True)
        assert (removed.exit_code, removed.left) == (0, ())
        after = site.vcenter.inventory()
        assert sorted(vm.name for vm in after.vms.values()) == ["old-trainer", "trainer"]
        assert [cluster.drs_overrides for cluster in after.clusters.values()] == [()]
        assert not any(held_addresses(server).values())


def test_more_whole_gpus_than_hosts_have_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with whole_gpus(tmp_path) as (server, site):
        wish = replace(WISH, nodes=9)
        report = create_cluster(wish, site, apply=True, keep=False, consent=lambda plan: None)
        assert report.exit_code == 3
        assert report.plan.rejections[0].line.startswith(f"{NAME}: VMs that hosts have room for: needs 9, 8 there")
        assert len(server.world.ledger) == 0
