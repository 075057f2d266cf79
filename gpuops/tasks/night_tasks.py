"""Tasks that run or show nights: the modules `rotation`, `rotation_info` and `rotation_timers_info` call them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from gpuops import api
from gpuops.config.date_text import parse_moment_or_clock
from gpuops.config.policy import policy_or_error
from gpuops.errors import PolicyError, UsageError
from gpuops.model.nights.rotation_policy import Policy
from gpuops.report.nights.rotation_plan_view import preview_document
from gpuops.report.nights.rotation_setup_view import timers_document
from gpuops.report.nights.rotation_status_view import status_document
from gpuops.report.plan_json import report_document
from gpuops.tasks.perform import TaskResult, inventory_after, result_of, unchanged_result
from gpuops.tasks.task_connection import ConnectionArguments, open_site, policy_of


class State(StrEnum):
    """The argument `state` of the module `rotation`; each but STATUS stands for a command of `gpuops rotate`."""

    NIGHT = "night"
    DAY = "day"
    RESUMED = "resumed"
    RESTORED = "restored"
    STATUS = "status"
    """Change nothing; the result shows where each VM is now."""


_COMMAND = {State.NIGHT: "night", State.DAY: "day", State.RESUMED: "resume", State.RESTORED: "restore"}


def rotation(
    connection: ConnectionArguments,
    *,
    state: str,
    policy: str | None = None,
    vms: Sequence[str] = (),
    from_markers: bool = False,
    by_timer: bool = False,
    apply: bool,
) -> TaskResult:
    """Return what the run changed, or would change in check mode; with `status` the result of `rotation_info`.

    Raises UsageError for options that do not fit `state`.
    """
    run_state = State(state)
    if run_state is not State.RESTORED and (vms or from_markers):
        raise UsageError("vms and from_markers need state=restored", hint="remove them, or set state=restored")
    if by_timer and run_state not in (State.NIGHT, State.DAY):
        raise UsageError("by_timer needs state=night or state=day", hint="remove it, or set one of these states")
    if run_state is State.STATUS:
        return rotation_info(connection, policy=policy)
    if run_state is State.NIGHT and policy is None:
        raise UsageError("state=night needs a policy", hint="set policy; templates/policy.yaml explains every key")
    # a return whose policy cannot be read still uses the policies in the journal
    brings_back = run_state in (State.DAY, State.RESTORED)
    rules = policy_or_error(Path(policy).expanduser() if policy else None) if brings_back else policy_of(policy)
    site, warnings = open_site(
        connection,
        require_verified=True,
        is_return=None if run_state is State.RESUMED else apply and brings_back,
        policy=None if isinstance(rules, PolicyError) else rules,
        run=f"rotate {_COMMAND[run_state]}" if apply else "",
    )
    with site:
        match run_state:
            case State.NIGHT:
                assert isinstance(rules, Policy), "`policy_of` raised for an unreadable policy, and None was refused"
                report = api.rotate_night(rules, site, apply=apply, unattended=True, by_timer=by_timer)
            case State.DAY:
                report = api.rotate_day(rules, site, apply=apply, by_timer=by_timer)
            case State.RESUMED:
                report = api.rotate_resume(site, apply=apply, unattended=True)
            case State.RESTORED:
                report = api.rotate_restore(rules, site, tuple(vms), from_markers=from_markers, apply=apply)
            case _:
                assert_never(run_state)
    document = report_document(report, f"rotate-{_COMMAND[run_state]}")
    return result_of(report, document, inventory_after(report), warnings)


def rotation_info(
    connection: ConnectionArguments, *, policy: str | None = None, at: str | None = None, plan: bool = False
) -> TaskResult:
    """Return the VMs that nights have taken, and where each is now; with `plan` or `at` also the next night.

    A damaged journal fails the task (exit code 7); the result then holds what the markers in vCenter say.
    """
    rules, file = policy_of(policy), Path(policy) if policy else None
    planned_moment = parse_moment_or_clock("at", at) if at is not None else None
    site, warnings = open_site(connection)
    with site:
        status = api.rotate_status(site, rules, policy_file=file)
        reasons = [status.journal_lost] if status.journal_lost else []
        fields = {"changed": False, "rotation": status_document(status), "night": None, "reasons": reasons}
        if not reasons and (plan or planned_moment is not None):
            fields["night"] = preview_document(api.rotate_plan(rules, site, planned_moment, policy_file=file))
    message = f"{status.journal_lost}: the result shows vCenter's markers" if reasons else ""
    return TaskResult(fields, status.exit_code, message, tuple(warnings))


def rotation_timers_info(_: ConnectionArguments, *, policy: str, cron_tz: bool | None = None) -> TaskResult:
    """Return when systemd and cron call `rotate night` and `rotate day` for this policy, without reading a vCenter."""
    rules = policy_of(policy)
    assert rules is not None, "Ansible requires it"
    return unchanged_result({"timers": timers_document(api.rotate_timers(rules, cron_tz=cron_tz))})
