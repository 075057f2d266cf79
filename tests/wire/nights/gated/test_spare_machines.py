"""Pools whose unused machines Horizon keeps powered on, whatever their power policy is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.broker.horizon import Horizon
from gpuops.config.policy import parse_policy
from gpuops.model.nights.rotation_policy import Policy
from gpuops.sim.state.vm_state import Power
from tests.wire.nights.gated.gates import POLICY, Gated

SPARES = 3


def policy_with(floor: int) -> Policy:
    return parse_policy(POLICY.text.replace("owner: none", f"floor: {floor}\n    owner: none"), "of the tests")


@pytest.fixture
def vdi_with_spares(vdi: Gated) -> Gated:
    """The pool `office`, three of whose unused machines are kept powered on."""
    with vdi.server.world.lock:
        vdi.server.world.desktop_pools = tuple(
            replace(pool, spare_machines=SPARES) if pool.name == "office" else pool
            for pool in vdi.server.world.desktop_pools
        )
    return vdi


def test_the_broker_tells_how_many_spare_machines_a_pool_has(vdi_with_spares: Gated) -> None:
    with Horizon(vdi_with_spares.target) as broker:
        pools = {pool.name: (pool.spare_machines, pool.refusal) for pool in broker.pools()}
    assert (pools["office"], pools["contractors"]) == ((SPARES, None), (0, None))


def test_a_night_takes_nothing_of_a_pool_with_more_spare_machines_than_the_floor(vdi_with_spares: Gated) -> None:
    night = vdi_with_spares.night(policy_with(SPARES - 1))
    assert vdi_with_spares.suspended == vdi_with_spares.gated == set()
    reasons = {choice.subject: choice.reason for choice in night.plan.choices}
    assert reasons["vdi-001"] == (
        "the broker keeps 3 spare machines of its pool powered on, and would resume others: pool office needs "
        "`floor: 3` or more"
    )


@pytest.mark.long
def test_a_floor_of_as_many_lets_the_night_take_the_others(vdi_with_spares: Gated) -> None:
    vdi_with_spares.night(policy_with(SPARES))
    assert vdi_with_spares.suspended and vdi_with_spares.gated == vdi_with_spares.suspended
    vdi_with_spares.day()
    vdi_with_spares.nothing_is_left()


def test_the_simulated_broker_keeps_so_many_powered_on() -> None:
    from gpuops.sim.horizon_server import Pod
    from gpuops.sim.scenario.build import build

    world = build("vdi")
    world.desktop_pools = tuple(
        replace(pool, logins_per_hour=0.0, spare_machines=SPARES if pool.name == "office" else 0)
        for pool in world.desktop_pools
    )
    with world.lock:
        pod = Pod(world)
        office = [vm for pool, vm in pod.machines() if pool.name == "office"]
        for vm in office:
            vm.state.power, vm.state.seats = Power.OFF, ()
        world.clock.advance(300)
        assert sum(vm.state.power is Power.ON for vm in office) == SPARES
