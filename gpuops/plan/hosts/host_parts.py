"""Host parts: what each host comes to, put together into one plan; refused on one host, nothing is done on any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.host_plan import HostPlan

REBOOT: Final = (
    "not in force before a reboot of {}: for each host, move or shut down its VMs, put it in maintenance mode and "
    "reboot it; then gpuops {} show"
)


@dataclass(frozen=True, slots=True)
class HostPart:
    """What one host comes to."""

    name: str
    rejections: tuple[Rejection, ...] = ()
    step: HostStep | None = None
    reboots: bool = True
    """Whether the step is not in force before a reboot."""
    warnings: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    due: HostStep | None = None
    """What is configured already and waits for a reboot; None = nothing does, or `step` changes it."""


def hosts_meant(verb: str, host: str | None, cluster: str | None, inventory: Inventory) -> tuple[Host, ...]:
    """The hosts with GPUs that a change is of. Raises UsageError where none is named, HostNotFound."""
    if host is None and cluster is None:
        raise UsageError(f"{verb} needs --host or --cluster", hint="--host '*' means every host with GPUs")
    scope = Scope(cluster=cluster, host=host)
    scope.check(inventory)
    return scope.hosts(inventory)


def together(parts: Sequence[HostPart], noun: str, notes: Iterable[str] = ()) -> HostPlan:
    """The plan of all hosts; `noun` names the command that shows what came of it."""
    steps = tuple(part.step for part in parts if part.step is not None)
    rejections = tuple(each for part in parts for each in part.rejections)
    because = tuple(text for part in parts for text in part.because)
    if rejections:
        return HostPlan(rejections=rejections, withheld=steps)
    due = tuple(part.due for part in parts if part.due is not None)
    if not steps:
        return HostPlan(because=because, due=due)
    names = [part.name for part in parts if part.step is not None and part.reboots]
    return HostPlan(
        steps=steps,
        warnings=tuple(text for part in parts for text in part.warnings),
        because=(*because, *notes),
        afterwards=(REBOOT.format(", ".join(names), noun),) if names else (),
        due=due,
        reboots=frozenset(part.step.host for part in parts if part.step is not None and part.reboots),
    )
