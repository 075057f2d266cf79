"""Check what a run needs before it follows a policy: the mode, a broker, a visible marker attribute."""

from __future__ import annotations

from gpuops.errors import Refused, UsageError
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site
from gpuops.model.nights.rotation import Policy


def require_mode(kind: RunKind, policy: Policy) -> None:
    """Raise UsageError for a night under a policy of spare capacity, and for a watch under a policy of nights."""
    if (kind is RunKind.WATCH) is (policy.spare is not None):
        return
    other_kind = RunKind.WATCH if kind is RunKind.NIGHT else RunKind.NIGHT
    hint = f"gpuops {other_kind} --policy FILE --dry-run, or another policy (gpuops help watch)"
    raise UsageError(f"policy {policy.name} says `mode: {policy.mode}`: {kind} takes nothing under it", hint=hint)


def require_broker(policy: Policy, site: Site) -> None:
    """Raise UsageError if the policy needs a connection broker and none is configured."""
    if policy.gates and site.gates is None:
        raise UsageError(
            f"policy {policy.name} says `broker: {policy.broker}`, and no connection broker is configured",
            hint="put [targets.NAME.broker] into the configuration file (gpuops help broker)",
        )


def require_markers_seen(policy: Policy, site: Site) -> None:
    """Raise Refused if the marker's custom attribute is not visible: then no marked VM could be found."""
    if policy.marker not in site.vcenter.defined_attributes():
        raise Refused(
            f"no custom attribute is called {policy.marker}, or this login cannot read it: no marker can be found",
            hint="use the policy of that night (--policy FILE) and the login that ran it",
        )
