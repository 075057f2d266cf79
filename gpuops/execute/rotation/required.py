"""What a policy needs of a run that goes by it: its mode, its broker, a marker that can be seen."""

from __future__ import annotations

from gpuops.errors import Refused, UsageError
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site
from gpuops.model.nights.rotation import Policy


def require_mode(kind: RunKind, policy: Policy) -> None:
    """Raises UsageError where nights are asked for under a policy of spare capacity, or the other way round."""
    if (kind is RunKind.WATCH) is (policy.spare is not None):
        return
    other = RunKind.WATCH if kind is RunKind.NIGHT else RunKind.NIGHT
    hint = f"gpuops {other} --policy FILE --dry-run, or another policy (gpuops help watch)"
    raise UsageError(f"policy {policy.name} says `mode: {policy.mode}`: {kind} takes nothing under it", hint=hint)


def require_broker(policy: Policy, site: Site) -> None:
    """Raises UsageError where the policy needs a gate and there is no broker."""
    if policy.gates and site.gates is None:
        raise UsageError(
            f"policy {policy.name} says `broker: {policy.broker}`, and no connection broker is configured",
            hint="put [targets.NAME.broker] into the configuration file (gpuops help broker)",
        )


def require_markers_seen(policy: Policy, site: Site) -> None:
    """Raises Refused where no VM can carry the marker: that nothing is marked then says nothing."""
    if policy.marker not in site.vcenter.defined_attributes():
        raise Refused(
            f"no custom attribute is called {policy.marker}, or this login does not see it: nothing tells what is away",
            hint="say the policy of that night, and log in as who ran it",
        )
