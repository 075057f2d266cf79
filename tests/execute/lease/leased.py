"""Nights and returns of a policy with a lock VM, on the small vCenter: what runs, and what the lock VM then carries."""

from __future__ import annotations

from pathlib import Path

from gpuops.config.policy import parse_policy
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, Step, SuspendVm
from gpuops.plan.rotation.lease_rules import KEY, Lease, parse_lease
from tests.execute.nights import POLICY_TEXT
from tests.execute.small_vcenter import START, SmallVcenter, World, _vm, small_world

LOCK = "gpuops-lock"
POLICY: Policy = parse_policy(POLICY_TEXT + f"lock_vm: {LOCK}\n", "leased")


def leased_world() -> World:
    """The small vCenter with a lock VM."""
    world = small_world()
    world.vms["vm-99"] = _vm("vm-99", LOCK, "ops", "", "host-2", PowerState.OFF)
    return world


def site(world: World, state_dir: Path) -> Site:
    """A process of one machine; its own clock goes as vCenter's does, from another beginning."""
    return Site(SmallVcenter(world), state_dir, world.tick, passed_s=lambda: (world.now - START).total_seconds() + 5000)


def read_lease(world: World) -> Lease | None:
    return parse_lease((world.vms["vm-99"].extra_config or {}).get(KEY, ""))


def number(world: World) -> int:
    lease = read_lease(world)
    assert lease is not None
    return lease.epoch


def run(world: World, kind: RunKind, state_dir: Path, policy: Policy = POLICY) -> Report:
    return rotate(kind, policy, site(world, state_dir), apply=True, consent=agreed)


def about_the_lock(report: Report) -> list[str]:
    """Its warnings, but for the one that the night whose window is still open ends with it."""
    return [text for text in report.plan.warnings if "ends with this return" not in text]


def acts(world: World) -> list[Step]:
    return [
        effect.step for effect in world.ledger if isinstance(effect.step, SuspendVm | PowerOnVm | ResumeVm | PowerOffVm)
    ]


def powers(world: World) -> list[tuple[str, PowerState | None]]:
    return [(vm.name, vm.power) for vm in world.vms.values()]


def revert(world: World) -> None:
    """The lock VM is as it was before anybody took a lease."""
    world.set("vm-99", extra_config={}, change_version="reverted")
