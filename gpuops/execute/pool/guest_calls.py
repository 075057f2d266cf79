"""One script in the guest of one VM of a pool: found by its instance UUID, run to its end, its answer read."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuops.errors import Refused, StepFailed
from gpuops.execute.site.guest_work import GuestWork
from gpuops.model.guests.guest_command import CommandEnd
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.pool import guest_scripts

SCRIPT_S: Final = 120.0
"""What one script may take in a guest."""


@dataclass(frozen=True, slots=True)
class PoolVms:
    """The VMs of a pool, and the way into their guests."""

    inventory: Inventory
    port: GuestWork
    network: str
    """The port group by which clients reach servers."""
    still_alone: Callable[[], None] = lambda: None
    """Called before each script; what it raises keeps that from being run."""

    def vm(self, uuid: str) -> Vm | None:
        """The VM of that instance UUID, whatever its name is by now; None = it is gone, or not seen."""
        return next((each for each in self.inventory.vms.values() if each.instance_uuid == uuid), None)

    def running(self, uuid: str, name: str) -> Vm:
        """The same, once it runs. Raises Refused."""
        vm = self.vm(uuid)
        if vm is None:
            message = f"{name} is not in this vCenter, or this login may not see it"
            raise Refused(message, hint="gpuops inventory --vms shows what it sees")
        if vm.power is not PowerState.ON:
            raise Refused(f"{vm.name} does not run: its guest cannot be set up", hint=f"power {vm.name} on")
        return vm

    def address(self, vm: Vm) -> str:
        """The guest's address in the network of the pool. Raises Refused where it tells none."""
        told = self.port.guest_addresses(vm.ref)
        found = guest_scripts.reachable(told.get(self.network, ()))
        if found is None:
            elsewhere = ", ".join(sorted(told)) or "none at all"
            message = f"{vm.name}: its guest tells no address in the network {self.network} (it has: {elsewhere})"
            raise Refused(message, hint=f"give it a network card in {self.network}, and VMware Tools time to tell")
        return found

    def run(self, vm: Vm, script: str) -> str:
        """What the script printed. Raises StepFailed where it did not do well, OutcomeUnknown, NotConnected, Refused.

        Neither the script nor what it printed is told in full: a program's file may print what it should not.
        """
        end = self.end(vm, script)
        if end.error:
            raise StepFailed(f"{vm.name}: {why(end)}", hint="look at the guest; the same again goes on")
        return end.printed

    def end(self, vm: Vm, script: str) -> CommandEnd:
        """How the script ended, well or not. Raises OutcomeUnknown, NotConnected, Refused."""
        self.still_alone()
        op_id = f"{guest_scripts.PREFIX}{secrets.token_hex(8)}"
        command = self.port.start_command(vm.ref, vm.name, script, op_id, guest_scripts.PREFIX)
        [end] = self.port.wait_for_commands([command], SCRIPT_S)
        return end


def why(end: CommandEnd) -> str:
    """Why it did not do well, with the last line that it printed."""
    lines = end.printed.strip().splitlines()
    last = f": {lines[-1][:200]}" if lines else ""
    return end.error.removeprefix(f"{end.name}: ") + last
