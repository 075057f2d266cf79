"""Rotation, the time of return: when, host by host, nothing more may be taken and bringing back must begin.

    deadline - (rounds of stops x (checkpoint grace + stop) + rounds of resumes x resume x 1.5 + 5 min), 45 min at least

Stop and resume are what 99 of 100 took. A round is as many operations as may be in flight at once, on the host, on a
datastore and in all: whichever of these limits needs the most rounds tells. All ML VMs stop before the first desktop
resumes, so every host waits for all of them. One desktop comes first, alone, where the policy wants a canary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.rotation import RETURN_FLOOR, MorningOrder, Policy
from gpuops.model.vm import Vm
from gpuops.plan.rotation.durations import Durations

SLOWER_THAN_EVER: Final = 1.5
MARGIN: Final = timedelta(minutes=5)
UNMEASURED_RESUME_S: Final = 180.0
UNMEASURED_POWER_OFF_S: Final = 60.0
"""What is assumed where nothing was measured yet: longer than any that we have seen."""


@dataclass(frozen=True, slots=True)
class Load:
    """What there is to return: desktops to bring back, ML VMs to stop, counted by host ref."""

    desktops: Mapping[str | None, int]
    on_datastore: Mapping[str, int]
    """Desktops whose files are on it."""
    datastores: Mapping[str | None, frozenset[str]]
    """Those that the desktops of a host are on."""
    ml_vms: Mapping[str | None, int]
    checkpoint_grace_s: int = 0
    """The longest that any of the ML VMs may take to keep its work."""

    @classmethod
    def of(cls, desktops: Iterable[Vm], ml_hosts: Iterable[str | None], checkpoint_grace_s: int = 0) -> Load:
        """The load of these desktops, and of ML VMs on these hosts."""
        by_host: Counter[str | None] = Counter()
        by_store: Counter[str] = Counter()
        stores: defaultdict[str | None, set[str]] = defaultdict(set)
        for vm in desktops:
            by_host[vm.host] += 1
            by_store.update(vm.datastores)
            stores[vm.host].update(vm.datastores)
        used = {host: frozenset(refs) for host, refs in stores.items()}
        return cls(by_host, by_store, used, Counter(ml_hosts), checkpoint_grace_s)


@dataclass(frozen=True, slots=True)
class ReturnTime:
    """When the return of a load must begin. A pure function of its fields."""

    policy: Policy
    durations: Durations
    deadline: datetime

    def of(self, host: str | None, load: Load) -> datetime:
        """From this moment on nothing is taken on the host; in UTC, on the second."""
        return (self.deadline - self.reserve(host, load)).replace(microsecond=0)

    def reserve(self, host: str | None, load: Load) -> timedelta:
        """How long is kept for returning the load."""
        return max(RETURN_FLOOR, self.needed(host, load))

    def needed(self, host: str | None, load: Load) -> timedelta:
        """How long returning the load takes at the most."""
        stop_s = self.durations.p99_s("ShutDownGuest", host, self.policy.ml_stop.grace_s + UNMEASURED_POWER_OFF_S)
        resume_s = self.durations.p99_s("ResumeVm", host, UNMEASURED_RESUME_S)
        stops = self.stop_rounds(load)
        resumes = self._resume_rounds(host, load)
        needed = timedelta(seconds=stops * (load.checkpoint_grace_s + stop_s) + resumes * resume_s * SLOWER_THAN_EVER)
        return needed + MARGIN

    def stop_rounds(self, load: Load) -> int:
        """How often as many ML VMs stop as may at once."""
        limits, numbers = self.policy.limits, load.ml_vms.values()
        most = max(numbers, default=0)
        return max(-(-most // limits.per_host), -(-sum(numbers) // limits.in_flight))

    def _resume_rounds(self, host: str | None, load: Load) -> int:
        limits, here = self.policy.limits, load.desktops.get(host, 0)
        if not here:
            return 0
        on_store = max((load.on_datastore[ref] for ref in load.datastores[host]), default=0)
        rounds = max(
            -(-here // limits.per_host),
            -(-on_store // limits.per_datastore),
            -(-sum(load.desktops.values()) // limits.in_flight),
        )
        canary = self.policy.morning is MorningOrder.CANARY_FIRST and here > 1
        return rounds + canary
