"""Tasks of the night and the morning, and of what they show. The modules `rotation` and `rotation_info` call them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from gpuops.errors import PolicyError, UsageError
from gpuops.tasks.connection import ConnectionArguments, open_site
from gpuops.tasks.result import TaskResult, inventory_after, result_of

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.model.nights.rotation import Policy
    from gpuops.plan.core.outcome import Report


class State(StrEnum):
    """What is to be so afterwards, and the command of `gpuops rotate` that sees to it."""

    NIGHT = "night"
    DAY = "day"
    RESUMED = "resumed"
    RESTORED = "restored"
    STATUS = "status"
    """Nothing is done: where everything is now."""


_COMMAND = {State.NIGHT: "night", State.DAY: "day", State.RESUMED: "resume", State.RESTORED: "restore"}


def rotation(
    connection: ConnectionArguments,
    state: str,
    *,
    policy: str | None = None,
    vms: tuple[str, ...] = (),
    from_markers: bool = False,
    by_timer: bool = False,
    apply: bool,
) -> TaskResult:
    """What the run changed, or in check mode would; of `status` what `rotation_info` tells, which changes nothing.

    Raises UsageError for options that mean nothing with `state`.
    """
    wanted = State(state)
    if wanted is not State.RESTORED and (vms or from_markers):
        raise UsageError("vms and from_markers go with state=restored", hint="leave them out")
    if by_timer and wanted not in (State.NIGHT, State.DAY):
        raise UsageError("by_timer goes with state=night and state=day", hint="leave it out")
    if wanted is State.STATUS:
        return rotation_info(connection, policy=policy)
    if wanted is State.NIGHT and policy is None:
        raise UsageError("state=night needs a policy", hint="templates/policy.yaml explains every key")
    brings_back = wanted in (State.DAY, State.RESTORED)
    meant = _said_policy(policy) if brings_back else _policy(policy)
    known = None if isinstance(meant, PolicyError) else meant
    run = f"rotate {_COMMAND[wanted]}" if apply else ""
    returning = None if wanted is State.RESUMED else apply and brings_back
    site, warnings = open_site(connection, guarded=True, returning=returning, policy=known, run=run)
    with site:
        report = _run(wanted, meant, site, vms, from_markers=from_markers, by_timer=by_timer, apply=apply)
    after = inventory_after(report)
    return result_of(report, f"rotate-{_COMMAND[wanted]}", after, warnings)


def _run(
    state: State,
    policy: Policy | PolicyError | None,
    site: Site,
    vms: tuple[str, ...],
    *,
    from_markers: bool,
    by_timer: bool,
    apply: bool,
) -> Report:
    from gpuops import api

    match state:
        case State.NIGHT:
            assert policy is not None and not isinstance(policy, PolicyError), "asked for above"
            return api.rotate_night(policy, site, apply=apply, unattended=True, by_timer=by_timer)
        case State.DAY:
            return api.rotate_day(policy, site, apply=apply, by_timer=by_timer)
        case State.RESUMED:
            return api.rotate_resume(site, apply=apply, unattended=True)
        case State.RESTORED:
            return api.rotate_restore(policy, site, vms, from_markers=from_markers, apply=apply)
        case State.STATUS:
            raise AssertionError("answered above, without a run")
        case _:
            assert_never(state)


def rotation_info(
    connection: ConnectionArguments, *, policy: str | None = None, at: str | None = None, plan: bool = False
) -> TaskResult:
    """What the nights took and where each VM is now; with `plan` also the night that would begin `at` a moment.

    A damaged journal fails the task (exit code 7), with what vCenter's markers say all the same.
    """
    from gpuops.api import rotate_plan, rotate_status
    from gpuops.config.date_text import parse_moment_or_clock
    from gpuops.report.document import as_values
    from gpuops.report.nights.rotation_plan import preview_document
    from gpuops.report.nights.rotation_status import status_document

    meant, file = _policy(policy), Path(policy) if policy else None
    begins = parse_moment_or_clock("at", at) if at is not None else None
    site, warnings = open_site(connection)
    with site:
        found = rotate_status(site, meant, policy_file=file)
        reasons = [found.journal_lost] if found.journal_lost else []
        result = {"changed": False, "rotation": as_values(status_document(found)), "night": None, "reasons": reasons}
        if not reasons and (plan or begins is not None):
            result["night"] = as_values(preview_document(rotate_plan(meant, site, begins, policy_file=file)))
    message = f"{found.journal_lost}: what is told is what vCenter's markers say" if reasons else ""
    return TaskResult(result, found.exit_code, message, tuple(warnings))


def rotation_timers_info(policy: str, *, cron_tz: bool | None = None) -> TaskResult:
    """When systemd and cron call the two halves of this policy. Asks no vCenter, and changes nothing."""
    from gpuops.api import rotate_timers
    from gpuops.config.policy import load_policy
    from gpuops.report.document import as_values
    from gpuops.report.nights.rotation_timers import timers_document

    found = rotate_timers(load_policy(Path(policy).expanduser()), cron_tz=cron_tz)
    return TaskResult({"changed": False, "timers": as_values(timers_document(found))})


def _said_policy(path: str | None) -> Policy | PolicyError | None:
    from gpuops.config.policy import said_policy

    return said_policy(Path(path).expanduser() if path else None)


def _policy(path: str | None) -> Policy | None:
    from gpuops.config.policy import load_policy

    return load_policy(Path(path).expanduser()) if path else None
