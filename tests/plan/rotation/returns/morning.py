"""A morning on the small vCenter: what the journal holds of its night, and the plan of the return."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from gpuops.catalog import load
from gpuops.model.nights.ml_queue import MlStop, QueuedVm
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Plan
from gpuops.plan.rotation.returns.day import RotateDay
from tests.execute.small_vcenter import SLOTS, World, small_world

CATALOG = load(profiles=SLOTS)
MORNING = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
NIGHT = "2026-11-20"
POLICY = Policy(
    "small",
    (Pool("all", Selector(folder="desktops", name="desktop-*"), idle=IdleRule(500), parked=True),),
    ml=(QueuedVm("ml-01"), QueuedVm("ml-02")),
    ml_stop=MlStop(grace_s=120, then_off=True),
)
SHARED = replace(POLICY, lock_vm="gpuops-lock")
"""Several machines rotate, each with a journal of its own."""


def world_after_night() -> World:
    """The night took the first two desktops and started ml-01 in their place."""
    world = small_world()
    for ref in ("vm-1", "vm-2"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    world._set_power("vm-91", PowerState.ON)
    world.set("vm-91", attributes={"gpuops.rotation": f"{NIGHT} ml"})
    return world


def original(world: World, ref: str, role: Role = Role.DESKTOP, *, is_taken: bool = True) -> Original:
    vm = world.vms[ref]
    return Original(NIGHT, role, ref, vm.instance_uuid, vm.name, vm.host, vm.profiles, is_taken)


def journal(world: World) -> tuple[Original, ...]:
    return (original(world, "vm-1"), original(world, "vm-2"), original(world, "vm-91", Role.ML))


def plan(world: World, originals: tuple[Original, ...] = (), policy: Policy = POLICY) -> Plan:
    return RotateDay(policy, originals).plan(world.snapshot(), CATALOG, MORNING)
