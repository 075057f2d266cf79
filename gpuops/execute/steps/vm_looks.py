"""When a VM is looked at anew: before each step that takes something, and what those looks read.

What makes a desktop give up its GPUs goes by a look of its own, made when everything before it had been sent. So a
machine that stands still, its clocks with it, sends at most one such request on what it saw before; and where the lease
or the journal took long after the look, the desktop is looked at, and judged, once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpuops import clock
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease_set import NO_LEASE, VmLeases
from gpuops.execute.site.policy_reads import NO_SOURCES, with_policy_reads
from gpuops.execute.site.ports import DesktopGates, SessionSource, Vcenter, VgpuUseSource
from gpuops.execute.steps.step_executor import StepExecutor
from gpuops.execute.steps.step_gates import StepGates
from gpuops.model.desktops.evidence import Source
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.outcome import Outcome
from gpuops.plan.core.steps import (
    SetVmDrs,
    Step,
)
from gpuops.plan.rotation.nights.guard import Guard
from gpuops.plan.rotation.nights.stop_conditions import ahead_by

FRESH: Final = timedelta(seconds=60)
"""How old what is known of a step's company may be: of VMs that are not touched, but counted."""

LOOK_S: Final = 25.0
"""How old the look may be that a step goes by, when it is sent; a night that cannot keep to it takes nothing.

It is to be at most 30 s old when the request arrives: the rest is for a slow machine or network on its way."""

SHARED_S: Final = 5.0
"""How old a look may be that the next steps share, when nothing was sent since. `LOOK_S` holds for them too."""


class VmLooks(StepExecutor[Step]):
    """An executor of steps of VMs, as far as it looks at them. `inventory` is the latest look."""

    def __init__(
        self,
        vcenter: Vcenter,
        journal: Journal,
        run: Run,
        planned: Inventory,
        *,
        guard: Guard | None = None,
        leases: VmLeases = NO_LEASE,
        passed_s: Callable[[], float] = clock.passed_s,
        same_time: bool = False,
        sources: Mapping[Source, SessionSource] = NO_SOURCES,
        gates: DesktopGates | None = None,
        vgpu_use: VgpuUseSource | None = None,
    ) -> None:
        """`guard` is asked before each step that takes something; None = nothing is taken.

        `leases`: that of a VM must be ours at each request about it; where there is none, this machine's lock alone
        keeps others away.

        `sources` tell of sessions beside vCenter, `vgpu_use` of what hosts' nvidia-smi tell; `gates` are those of the
        connection broker. None = there is none.

        `same_time`: vCenter's clock and the journal's should show the same.
        """
        super().__init__(vcenter, journal, run, planned, passed_s=passed_s)
        self.planned = planned
        self._guard = guard
        self._leases = leases
        self._same_time = same_time
        self._sources = sources
        self._gates = gates
        self._vgpu_use = vgpu_use
        self.step_gates = StepGates(gates, sources, planned, guard)
        self._planned_s = passed_s()
        """When the plan, which is the first look, was there."""
        self._look_s: dict[str, float] = {}
        """VM -> when the look was asked for that its next step goes by."""
        self._looked_at: dict[str, float] = {}
        """VM -> when it was looked at for steps, as long as nothing has been sent since."""
        self._sent_since_look = False
        self._ahead: timedelta | None = None
        """How far vCenter's clock was ahead of ours at the last look before steps; None = they do not compare."""
        self._company_at: dict[str, datetime] = {}
        self._steered: set[str] = set()
        self._ended: list[Outcome] = []

    def look(self, vms: Collection[str]) -> None:
        """Reads these VMs, and the GPUs of their hosts, anew; with them DRS of VMs that a step speaks to it about."""
        asked_s = self.passed_s()
        self.inventory = self.vcenter.observe(self.inventory, vms)
        self._leases.saw(self.inventory, vms, asked_s)
        steered = self._steered.intersection(vms)
        if steered:
            self.inventory = self.vcenter.with_drs(self.inventory, steered)
        self.inventory = self.step_gates.read(self.inventory, vms)

    def look_before(self, steps: Sequence[Step], ended: Collection[str] = ()) -> None:
        """Reads the VMs of steps that are about to be sent, and with them whoever the guard must know of, the lock VM,
        and VMs whose steps have `ended`.

        Where all of these were read for steps a moment ago, and nothing was sent since, that look is shared.
        """
        vms = {step.vm for step in steps}
        vms |= self._leases.lock_vms(vms)
        self._steered |= {step.vm for step in steps if isinstance(step, SetVmDrs)}
        self.step_gates.speaks_about(steps)
        if self._guard is not None:
            vms |= self._company(self._guard, self._guard.pools(steps, self.inventory))
            vms |= self._guard.vms_beside_kept_slots(steps, self.inventory)
        asked_s = self.passed_s()
        if not ended and vms <= self._looked_at.keys():
            oldest_s = min((self._looked_at[ref] for ref in vms), default=asked_s)
            if asked_s - oldest_s <= SHARED_S:
                return
        asked = self.journal.clock() if self._same_time else None
        self._look_s |= dict.fromkeys(vms, asked_s)
        self._sent_since_look = False
        self.look({*vms, *ended})
        if self._guard is not None:
            machines = {step.vm: machine for step in steps if (machine := self.step_gates.machine_of(step))}
            self.inventory = with_policy_reads(
                self.vcenter,
                self.inventory,
                self._guard.policy,
                vms,
                self._sources,
                self._gates,
                machines,
                self._vgpu_use,
            )
        if asked is not None:
            self._ahead = ahead_by(self.inventory.taken_at, asked, self.journal.clock())
        self._looked_at |= dict.fromkeys(vms, asked_s)

    def share_no_look(self) -> None:
        """What was read until now is not what the next steps go by: something was sent, or time has passed, which the
        clocks of a machine that stands still do not tell."""
        self._looked_at.clear()

    def _company(self, guard: Guard, pools: Collection[str]) -> frozenset[str]:
        """Who counts in those of the pools that were not looked at for a while."""
        now = self.inventory.taken_at
        stale = [each for each in pools if now - self._company_at.get(each, self.planned.taken_at) > FRESH]
        if not stale:
            return frozenset()
        self._company_at |= dict.fromkeys(stale, now)
        return guard.counted_vms(stale, self.inventory, self._ended)

    def read_back(self, step: Step) -> None:
        """Reads the step's VM, and the GPUs of its host, anew."""
        self.look([step.vm])

    def _is_old(self, step: Step) -> bool:
        """Whether the look at its VM is older than what the step may go by; a look at others says nothing of it."""
        return self.passed_s() - self._look_s.get(step.vm, self._planned_s) > LOOK_S
