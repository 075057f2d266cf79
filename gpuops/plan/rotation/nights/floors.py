"""Enforces how many desktops of each pool stay running. `desktops.py` calls it when a night is planned, `guard.py`
before each step.

While a night of another policy is open, the floors of its pools hold as well. Two policies may select the same
desktops. A desktop that the other night has taken no longer runs, so it does not count towards any floor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation import Policy, Pool
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.rotation.taken_vms import TakenVm, stays_running

FloorKey = tuple[int, str]
"""Number of the policy (0 = that of the night itself), and the pool's name."""
_ONE_FLOOR: Final = "gpuops rotate restore --vm NAME brings one back; give the pools of both policies the same `floor`"


@dataclass(frozen=True, slots=True)
class Floors:
    """The floors that hold for the desktops of one night."""

    policy: Policy
    other_policies: tuple[Policy, ...] = ()
    """Other policies that have an open night in the journal."""

    def pools_of(self, vm: Vm) -> Iterator[tuple[FloorKey, Policy, Pool]]:
        """Yield the pools with a floor that select the VM, at most one of each policy."""
        for number, policy in enumerate((self.policy, *self.other_policies)):
            pool = policy.pool_of(vm)
            if pool is not None and pool.floor:
                yield (number, pool.name), policy, pool

    def count_running(self, vms: Iterable[Vm]) -> Counter[FloorKey]:
        """Count the running VMs for each floor."""
        return Counter(key for vm in vms if stays_running(vm) for key, _, _ in self.pools_of(vm))

    def objection(self, vm: Vm, running: Mapping[FloorKey, int]) -> str | None:
        """Return which floor would be broken if the VM stopped running, or None.

        `running` is the number of running desktops by floor, this VM included (`count_running`).
        """
        for key, policy, pool in self.pools_of(vm):
            if running.get(key, 0) <= pool.floor:
                of_policy = "" if policy is self.policy else f" of policy {policy.name}, whose night is open,"
                return f"floor: {pool.floor} of pool {pool.name}{of_policy} stay running"
        return None


def other_open_policies(policy: Policy, originals: Iterable[Original]) -> tuple[Policy, ...]:
    """Return the policies with another name whose nights are open: their floors hold as well.

    For a policy that was edited since its night began, only the current text counts.
    """
    policies = (original.policy for original in originals if not original.returned)
    return tuple(
        {
            id(open_policy): open_policy
            for open_policy in policies
            if open_policy is not None and open_policy.name != policy.name
        }.values()
    )


def floors_broken_by_others(policy: Policy, away_vms: Iterable[TakenVm], inventory: Inventory) -> Iterator[Rejection]:
    """Yield a refusal for each pool that is below its floor because a night of another policy took desktops of it."""
    running = Floors(policy).count_running(inventory.vms.values())
    counts_by_night: Counter[tuple[str, str, str]] = Counter()
    for taken_vm in away_vms:
        vm, policy_of_night = taken_vm.vm, taken_vm.policy
        pool = policy.pool_of(vm) if vm is not None else None
        if pool is not None and policy_of_night.name != policy.name and taken_vm.original.role is not Role.ML:
            counts_by_night[pool.name, taken_vm.original.night, policy_of_night.name] += 1
    for pool in policy.pools:
        count = running[0, pool.name]
        nights = [
            f"night {night} of policy {name} has taken {number}"
            for (pool_name, night, name), number in sorted(counts_by_night.items())
            if pool_name == pool.name
        ]
        if count < pool.floor and nights:
            rule = f"floor: {pool.floor} are to stay running, {count} do: {', '.join(nights)}"
            yield Rejection(f"pool {pool.name}", rule, hint=_ONE_FLOOR)
