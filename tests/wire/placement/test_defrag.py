"""A defragmentation carried out move by move on the simulated vCenter: it admits each, and all ends as planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from gpuops.api import catalog_of
from gpuops.model.devices.gpu import AssignmentPolicy
from gpuops.model.vcenter.host import DrsRule, RuleKind
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, RelocateVm, Step
from gpuops.plan.moving.defrag import Defrag, Defragmentation, PlannedMove
from gpuops.plan.moving.movability import MoveMethod
from gpuops.sim.server import SimServer
from gpuops.sim.state.drs import ClusterRule, Group, Override
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

Serve = Callable[[str], SimServer]


def plan_moves(connection: Connection, **options: Any) -> Defragmentation:
    inventory = connection.inventory()
    return Defrag(**options).find_moves(inventory, catalog_of(inventory))


def perform_step(step: Step, connection: Connection) -> None:
    task = connection.submit(step, connection.inventory(), "test")
    assert task is not None
    assert [end.error for end in connection.wait([task], 600)] == [None]


def steps_of(move: PlannedMove) -> tuple[Step, ...]:
    if move.way is MoveMethod.VMOTION:
        return (move.step,)
    return PowerOffVm(move.vm.ref), move.step, PowerOnVm(move.vm.ref, move.target.ref)


def carried_out(connection: Connection, **options: Any) -> Defragmentation:
    """The plan, once each of its moves was admitted and is where it was to be."""
    plan = plan_moves(connection, **options)
    for move in plan.moves:
        for step in steps_of(move):
            perform_step(step, connection)
        now = connection.inventory()
        vm, host = now.vms[move.vm.ref], now.hosts[move.target.ref]
        assert (vm.host, vm.power) == (host.ref, PowerState.ON)
        assert any(vm.ref in (gpu.vms or ()) for gpu in host.gpus if gpu.address in move.gpus)
    return plan


def set_policy(server: SimServer, policy: str) -> None:
    for host in server.world.by_type("HostSystem"):
        host.state.policy = type(host.state.policy)(policy)
        host.touch("config")


@pytest.mark.long
@pytest.mark.parametrize(
    "policy",
    [
        AssignmentPolicy.CONSOLIDATION,
        pytest.param(AssignmentPolicy.PERFORMANCE, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "profile", [None, *(pytest.param(each, marks=pytest.mark.long) for each in ("a40-24q", "a40-48q"))]
)
def test_scattered_ends_as_planned(serve: Serve, policy: AssignmentPolicy, profile: str | None) -> None:
    server = serve("scattered")
    set_policy(server, policy)
    with Connection(target_of(server)) as connection:
        plan = carried_out(connection, profile=profile)
        assert plan.after > plan.before
        assert plan_moves(connection, profile=profile, max_moves=0).before == plan.after == plan.bound
    moves = [change.method for change in server.world.ledger]
    assert moves == ["RelocateVM_Task"] * len(plan.moves)


@pytest.mark.long
def test_without_hot_migration_the_same_is_done_powered_off(serve: Serve) -> None:
    server = serve("scattered")
    server.world.options["vgpu.hotmigrate.enabled"] = False
    with Connection(target_of(server)) as connection:
        assert plan_moves(connection).moves == ()
        plan = carried_out(connection, powered_off=True)
        assert {move.way for move in plan.moves} == {MoveMethod.POWERED_OFF}
        assert plan_moves(connection, max_moves=0).before == plan.after == 4


MODES = {"a40": ("sameSize", "mixedSize"), "a100": ("multiInstanceGpu", "sameSize")}
KINDS = {
    "a40": ("nvidia_a40-8q", "nvidia_a40-12q", "nvidia_a40-24q", "nvidia_a40-48q"),
    "a100": ("grid_a100-1-5c", "grid_a100-2-10c", "grid_a100-3-20c", "grid_a100-5c", "grid_a100-20c"),
}


def write_churned_scenario(seed: int, folder: Path) -> str:
    """A scenario file: three hosts of three GPUs in modes by chance, and what its hosts took of many VMs, thinned."""
    chance = Random(seed)
    scattered = Path(__file__).parents[3] / "gpuops" / "sim" / "scenarios" / "scattered.yaml"
    scenario = yaml.safe_load(scattered.read_text(encoding="utf-8"))
    board = chance.choice(list(MODES))
    hosts: list[dict[str, Any]] = []
    for number in (1, 2, 3):
        modes = [chance.choice(MODES[board]) for _ in range(3)]
        gpus = [
            {"board": board, "at": f"0000:{16 + at:02x}:00.0", "node": at % 2, "mode": mode}
            for at, mode in enumerate(modes)
        ]
        policy = chance.choice(["performance", "consolidation"])
        hosts.append(
            {**scenario["clusters"][0]["hosts"][0], "name": f"esx-{number}", "count": 1, "gpus": gpus, "policy": policy}
        )
    scenario["clusters"][0]["hosts"] = hosts
    kind = {**scenario["vms"][0], "count": 1, "power": "fit"}
    scenario["vms"] = [
        {
            **kind,
            "name": f"vm-{number}",
            "on": f"esx-{chance.randint(1, 3)}",
            "memory_gib": chance.choice([8, 32, 64]),
            "devices": [{"vgpu": chance.choice(KINDS[board])}] * chance.choice([1, 1, 1, 2]),
        }
        for number in range(24)
    ]
    path = folder / f"churned-{seed}.yaml"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_churned_world_ends_no_worse_than_planned(serve: Serve, seed: int, tmp_path: Path) -> None:
    server = serve(write_churned_scenario(seed, tmp_path))
    chance = Random(seed)
    with Connection(target_of(server)) as connection:
        now = connection.inventory()
        running = [vm.ref for vm in now.vms.values() if vm.power is PowerState.ON]
        for ref in chance.sample(running, len(running) // 2):
            perform_step(PowerOffVm(ref), connection)
        for profile in (chance.choice(now.offered_profiles), None):
            plan = carried_out(connection, profile=profile)
            assert plan_moves(connection, profile=profile, max_moves=0).before >= plan.after


@pytest.mark.long
def test_what_binds_a_vm_is_read_and_vcenter_refuses_the_move_too(serve: Serve) -> None:
    server = serve("scattered")
    hosts = {host.name: host for host in server.world.by_type("HostSystem")}
    vms = {vm.name: vm for vm in server.world.by_type("VirtualMachine")}
    cluster = hosts["esx-01.scattered"].compute_resource()
    with server.world.changed:
        cluster.drs.groups = {
            "cads": Group("cads", False, (vms["cad-01"].moid,)),
            "home": Group("home", True, (hosts["esx-01.scattered"].moid,)),
        }
        pair = (vms["desk-12"].moid, vms["desk-13"].moid)
        cluster.drs.rules = {
            1: ClusterRule(1, "licence", "ClusterVmHostRuleInfo", True, True, vm_group="cads", affine_hosts="home"),
            2: ClusterRule(2, "pair", "ClusterAntiAffinityRuleSpec", True, False, vms=pair),
            3: ClusterRule(3, "off", "ClusterAffinityRuleSpec", False, False, vms=pair),
        }
        cluster.drs.overrides = {vms["desk-01"].moid: Override(enabled=False)}
        cluster.touch("configurationEx")
    with Connection(target_of(server)) as connection:
        (cluster_read,) = connection.inventory().clusters.values()
        assert cluster_read.rules == (
            DrsRule(
                "licence", RuleKind.HOSTS, (vms["cad-01"].moid,), on=(hosts["esx-01.scattered"].moid,), mandatory=True
            ),
            DrsRule("pair", RuleKind.APART, pair, mandatory=False),
        )
        assert cluster_read.drs_excluded == (vms["desk-01"].moid,)
        plan = carried_out(connection)
        stays = {stay.vm.name: stay.reasons[0] for stay in plan.stays}
        assert {name: reason for name, reason in stays.items() if "DRS" in reason} == {
            "cad-01": "esx-02.scattered: DRS rule 'licence' keeps cad-01 off it",
            "desk-01": "DRS is switched off for it",
            "desk-12": "DRS rule 'pair' keeps it apart from others",
            "desk-13": "DRS rule 'pair' keeps it apart from others",
        }
        task = connection.submit(
            RelocateVm(vms["cad-01"].moid, hosts["esx-02.scattered"].moid), connection.inventory(), "test"
        )
        assert task is not None
        (end,) = connection.wait([task], 60)
        assert "affinity" in str(end.error)
