"""Reads and writes the lease on the lock VM, and knows which numbers of leases were seen elsewhere."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.errors import GpuopsError, NoPermission, NotConnected, Refused
from gpuops.execute.journal import Journal
from gpuops.execute.site.ports import Vcenter
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import LEASE_OPERATION
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import ReconfigureVm, VmChange
from gpuops.plan.rotation import lease as rules
from gpuops.plan.rotation.lease import KEY, Numbered


class LockVm:
    """The lock VM of one vCenter: its lease as it was read last, and the one way to change it."""

    def __init__(self, vcenter: Vcenter, name: str, seen: Inventory | None = None, *, ref: str | None = None) -> None:
        """`ref`: its managed object id, where that is known. Raises Refused where there is no such VM, or more than
        one."""
        self._vcenter = vcenter
        self._seen = seen or vcenter.inventory()
        found = [vm.ref for vm in self._seen.vms.values() if vm.name == name and ref in (None, vm.ref)]
        if len(found) != 1:
            raise Refused(
                f"lock_vm: {len(found) or 'no'} VMs are called {name}", hint="one small VM, powered off, is needed"
            )
        self.name, self._ref = name, found[0]
        self.why = "somebody else is at it"
        """What the latest write that failed was told."""
        self.failed: GpuopsError | None = None
        """The error of vCenter that the latest write ended with; None = it was overtaken, or did well."""

    @property
    def ref(self) -> str:
        """The VM's managed object id."""
        return self._ref

    @property
    def managed(self) -> str | None:
        """Whose VM it is, where that is another product's: no night writes to it. A return does, for its desktops."""
        return managed_elsewhere(self._vm)

    @property
    def seen(self) -> Inventory:
        """The latest look; its `taken_at` is vCenter's clock."""
        return self._seen

    def look(self) -> rules.Lease | None:
        """The lease as it is now. Raises Refused for what gpuops did not write."""
        return self.read(self._vcenter.observe(self._seen, {self._ref}))

    def read(self, seen: Inventory) -> rules.Lease | None:
        """The lease in this look, which is the latest now. Raises Refused for what gpuops did not write."""
        self._seen = seen
        settings = self._vm.extra_config
        if settings is None:
            raise Refused(f"lock_vm: the settings of {self.name} cannot be read")
        return rules.parse_lease(settings.get(KEY, ""))

    def write(self, lease: rules.Lease) -> bool:
        """Whether the lease is this one now, unless the VM was changed since the last look. Looks anew."""
        step = ReconfigureVm(self._ref, VmChange(extra_config={KEY: rules.lease_text(lease)}))
        try:
            task = self._vcenter.submit(step, self._seen, f"{LEASE_OPERATION}{lease.nonce or 'back'}-{lease.epoch}")
            ended = list(self._vcenter.wait([task], rules.CALL_TIMEOUT_S)) if task is not None else []
            self.failed = next((end.error for end in ended if end.error is not None), None)
        except (NotConnected, NoPermission):
            raise
        except GpuopsError as error:  # busy, or overtaken, or its reply was lost: what is there now tells
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
            raise Refused(f"lock_vm: {self.name} is gone from vCenter")
        return vm


def highest_number(name: str, policies: Sequence[Policy], journal: Journal | None, inventory: Inventory) -> Numbered:
    """The highest number of a lease on the lock VM of this name that this machine's journal knows, or that a marker of
    one of these policies names."""
    highest = Numbered(journal.lease_number(name) if journal is not None else 0, "this machine's journal")
    for policy in policies:
        marked = rules.number_in_markers(policy, inventory) if policy.lock_vm == name else highest
        highest = marked if marked.number > highest.number else highest
    return highest


def owner() -> str:
    """This machine and process, for people."""
    return f"pid {os.getpid()} on {socket.gethostname()}"
