"""Reads and writes the lease on the lock VM, and knows which lease numbers were seen elsewhere."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.errors import GpuopsError, NoPermission, NotConnected, Refused
from gpuops.execute.journal import Journal
from gpuops.execute.site.ports import Vcenter
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import LEASE_OPERATION
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import ReconfigureVm, VmChange
from gpuops.plan.rotation import lease_rules
from gpuops.plan.rotation.lease_rules import KEY, Numbered


class LockVm:
    """The lock VM of one vCenter: its lease as last read, and the only way to change it."""

    def __init__(
        self, vcenter: Vcenter, name: str, inventory: Inventory | None = None, *, ref: str | None = None
    ) -> None:
        """`ref`: its managed object id, if known. Raises Refused unless there is exactly one such VM."""
        self._vcenter = vcenter
        self._seen = inventory or vcenter.inventory()
        refs = [vm.ref for vm in self._seen.vms.values() if vm.name == name and ref in (None, vm.ref)]
        if len(refs) != 1:
            raise Refused(
                f"lock_vm: {len(refs) or 'no'} VMs are called {name}",
                hint="give this name to exactly one small VM, powered off; gpuops rotate init --policy FILE creates it",
            )
        self.name, self._ref = name, refs[0]
        self.why = "another run or user changed the lock VM at the same time"
        """The reason of the latest write that failed."""
        self.failed: GpuopsError | None = None
        """vCenter's error for the latest write; None if it succeeded or the VM was changed in between."""

    @property
    def ref(self) -> str:
        """The VM's managed object id."""
        return self._ref

    @property
    def managed(self) -> str | None:
        """The product that manages the VM, if any: no night writes to such a VM. A return does, to bring desktops
        back."""
        return managed_elsewhere(self._vm)

    @property
    def seen(self) -> Inventory:
        """The latest look; its `taken_at` is vCenter's clock."""
        return self._seen

    def look(self) -> lease_rules.Lease | None:
        """Read the lease now. Raises Refused for text that gpuops did not write."""
        return self.read(self._vcenter.observe(self._seen, {self._ref}))

    def read(self, inventory: Inventory) -> lease_rules.Lease | None:
        """Return the lease in this look, which becomes the latest. Raises Refused for text that gpuops did not
        write."""
        self._seen = inventory
        settings = self._vm.extra_config
        if settings is None:
            raise Refused(
                f"lock_vm: this login cannot read the settings (extraConfig) of {self.name}",
                hint=f"connect the host of {self.name}, and check the login: gpuops doctor",
            )
        return lease_rules.parse_lease(settings.get(KEY, ""))

    def write(self, lease: lease_rules.Lease) -> bool:
        """Write the lease unless the VM was changed since the last look, read it back, and return whether it is
        there."""
        step = ReconfigureVm(self._ref, VmChange(extra_config={KEY: lease_rules.lease_text(lease)}))
        try:
            # a lease without a nonce is one that a run gives back
            task = self._vcenter.submit(step, self._seen, f"{LEASE_OPERATION}{lease.nonce or 'back'}-{lease.epoch}")
            ended = list(self._vcenter.wait([task], lease_rules.CALL_TIMEOUT_S)) if task is not None else []
            self.failed = next((end.error for end in ended if end.error is not None), None)
        except (NotConnected, NoPermission):
            raise
        except GpuopsError as error:  # busy, changed in between, or the reply was lost: the read-back decides
            self.failed = error
        if self.failed is not None:
            self.why = self.failed.message
        return self.look() == lease

    @property
    def is_gone(self) -> bool:
        """Whether the latest look did not find the VM."""
        return self._ref not in self._seen.vms

    @property
    def _vm(self) -> Vm:
        vm = self._seen.vms.get(self._ref)
        if vm is None:
            raise Refused(
                f"lock_vm: {self.name} is gone from vCenter", hint="gpuops rotate init --policy FILE creates it again"
            )
        return vm


def highest_number(name: str, policies: Sequence[Policy], journal: Journal | None, inventory: Inventory) -> Numbered:
    """Return the highest lease number for the lock VM of this name, from this machine's journal and from the markers of
    these policies."""
    highest = Numbered(journal.lease_number(name) if journal is not None else 0, "this machine's journal")
    for policy in policies:
        in_markers = lease_rules.number_in_markers(policy, inventory) if policy.lock_vm == name else highest
        highest = in_markers if in_markers.number > highest.number else highest
    return highest


def owner() -> str:
    """Return this machine and process, for people to read."""
    return f"pid {os.getpid()} on {socket.gethostname()}"
