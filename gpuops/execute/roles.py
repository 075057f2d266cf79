"""Compare the roles defined in files with vCenter's, and write those that differ, each once."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gpuops.errors import GpuopsError, NoPermission, OutcomeUnknown, PartlyDone
from gpuops.execute.site import Site
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.steps.vcenter_settings import roles_port
from gpuops.execute.steps.vm_runs import end_cut_off_creations, make_settings, step_failure
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import RoleState, RoleWish
from gpuops.plan.core.plan import Outcome
from gpuops.plan.core.steps import SetRole, VcenterSetting
from gpuops.plan.doctor.host_findings import Finding
from gpuops.plan.doctor.login_privileges import compare_with_roles

ROLES: Final = "roles apply"
"""The kind of run that writes roles, in journals."""


def applied_roles(wishes: Sequence[RoleWish], site: Site, *, apply: bool) -> tuple[RoleState, ...]:
    """Return each requested role as vCenter has it, or, with `apply`, as it was before it was written.

    Raises NoPermission if nothing was changed, and PartlyDone, with the roles that were written, after a later failure.
    """
    states = roles_port(site.vcenter).roles(wishes)
    steps = [SetRole(state.wish.name, tuple(sorted(state.wish.privileges))) for state in states if not state.right]
    if not apply:
        return states
    end_cut_off_creations(ROLES, socket.gethostname(), site)
    if steps:
        outcomes, failure = make_settings(ROLES, steps, site.vcenter.inventory(), site)
        if step_failure(outcomes[-1]):
            error = _error(outcomes[-1], failure)
            if len(outcomes) == 1:  # the first role failed: nothing was written before it
                raise error
            written = ", ".join(step.name for step in steps[: len(outcomes) - 1])
            raise PartlyDone(
                f"{error.message}; roles written before: {written}",
                hint=error.hint or "run the command again",
            ) from error
    return tuple(replace(state, written=not state.right) for state in states)


def compare_login(wishes: Sequence[RoleWish], vcenter: Vcenter, inventory: Inventory) -> Iterator[Finding]:
    """Yield the privileges of the roles that a login lacks, and those it has beyond them; nothing without roles."""
    if wishes:
        granted, root = roles_port(vcenter).granted(inventory)
        yield from compare_with_roles(wishes, granted, root, inventory)


def _error(outcome: Outcome[VcenterSetting], failure: GpuopsError | None) -> GpuopsError:
    """Return the error to raise. `failure`: vCenter's error; None = it is unknown whether the role was written."""
    if failure is None:
        message = f"the role {outcome.step.name} still differs from its file"
        return OutcomeUnknown(message, hint="gpuops roles show lists how")
    if isinstance(failure, NoPermission):
        hint = "use a login with Authorization.ModifyRoles; the login of the nights needs no such right"
        return NoPermission(failure.message, hint=hint)
    return failure
