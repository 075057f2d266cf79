"""`gpuops doctor`, `roles` and `readiness`: problems of hosts, GPUs, VMs and roles; whether a host can be emptied."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError, report_exit_code
from gpuops.plan.core.scope import Scope


@spread
@reads_sites
def doctor(
    common: CommonOptions,
    host_shell: HostShellOptions,
    scope: Scope,
    roles: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare what this login may do with these roles: templates/roles/*.yaml."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare this machine's timers with the windows of this rotation policy."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 for anything worse than a note.")] = False,
    assumptions: Annotated[
        bool,
        typer.Option("--assumptions", help="List the rules gpuops goes by, and which of them this vCenter shows."),
    ] = False,
) -> None:
    """Say what stands in the way on hosts, GPUs and VMs, each with its reason and what to do. Changes nothing.

    With --host-shell ssh the hosts' own nvidia-smi is asked too, for MIG mode and ECC. With --assumptions
    tasks, events and counters of vCenter are read too, to judge the rules of vSphere and NVIDIA that gpuops goes by.

    \b
    Examples:
      gpuops doctor --vcenter sim:lab
      gpuops doctor --strict --cluster lab-cluster --vcenter sim:lab
      gpuops doctor --roles templates/roles/night.yaml --vcenter sim:lab
      gpuops doctor --policy templates/policy.yaml --vcenter sim:lab
      gpuops doctor --assumptions --vcenter sim:lab
    """
    if assumptions:
        if roles is not None or policy is not None or scope != Scope():
            raise UsageError(
                "--assumptions is about the whole vCenter: it excludes --host, --cluster, --roles and --policy",
                hint="gpuops doctor --assumptions lists all rules",
            )
        _list_assumptions(common, host_shell, strict=strict)
        return
    from gpuops.api import doctor as examine
    from gpuops.config.policy import load_policy
    from gpuops.config.role_file import load_roles
    from gpuops.console.opening import open_site, remember
    from gpuops.report.monitoring.doctor import doctor_document, doctor_text

    wishes = load_roles(roles) if roles is not None else ()
    called = (load_policy(policy), policy) if policy is not None else None
    with open_site(common) as site:
        host_shell.give_to(site)
        examination = examine(site, scope, wishes, called)
    remember(common, examination.inventory)
    output.show(doctor_text(examination), doctor_document(examination))
    output.leave(report_exit_code(refused=strict and not examination.healthy))


def _list_assumptions(common: CommonOptions, host_shell: HostShellOptions, *, strict: bool) -> None:
    """Show which rules this vCenter confirms or contradicts; with `strict` a contradicted one is exit code 3."""
    from gpuops.api.first_contact import judged_contact
    from gpuops.console.opening import open_site
    from gpuops.model.assumption import Standing
    from gpuops.report.first_contact import AssumptionsDocument, assumptions_text

    with open_site(common) as site:
        host_shell.give_to(site)
        judged = judged_contact(site)
    output.show(assumptions_text(judged), AssumptionsDocument.made_of(judged))
    output.leave(report_exit_code(refused=strict and any(row.standing is Standing.CONTRADICTED for row in judged.rows)))


roles = VerbTable("roles", "Compare vCenter's roles with those that gpuops needs, and make them.")
RoleFile = Annotated[Path, typer.Option("--file", metavar="FILE", help="The roles wanted: templates/roles/*.yaml.")]


@roles.command("show")
@spread
@reads_sites
def roles_show(common: CommonOptions, file: RoleFile) -> None:
    """Show which of the wanted roles are there, and what each lacks or has too much. Changes nothing.

    \b
    Example:
      gpuops roles show --file templates/roles/night.yaml --vcenter sim:lab
    """
    _compare_roles(common, file, apply=False)


@roles.command("apply")
@spread
def roles_apply(
    common: CommonOptions,
    file: RoleFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written; change nothing.")] = False,
) -> None:
    """Make the wanted roles in vCenter, and bring those of the same name to what is wanted.

    Needs Authorization.ModifyRoles. Gives no account any role: that is an administrator's, where each `where` says.

    \b
    Example:
      gpuops roles apply --file templates/roles/night.yaml --vcenter sim:lab
    """
    _compare_roles(common, file, apply=not dry_run)


def _compare_roles(common: CommonOptions, file: Path, *, apply: bool) -> None:
    from gpuops.api import roles as bring
    from gpuops.config.role_file import load_roles
    from gpuops.console.opening import open_site
    from gpuops.report.monitoring.doctor import roles_document, roles_text

    wishes = load_roles(file)
    with open_site(common) as site:
        states = bring(wishes, site, apply=apply)
    output.show(roles_text(states), roles_document(states))


@spread
@reads_sites
def readiness(
    common: CommonOptions,
    scope: Scope,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 where a host cannot be emptied.")] = False,
    saved: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Ask a saved snapshot, without a vCenter.")
    ] = None,
) -> None:
    """Say of each host with GPUs whether it can be emptied, and whether it can be lost. Changes nothing.

    With --host also which VM goes where, in which order. A rolling change asks the same before its first host.

    \b
    Examples:
      gpuops readiness --vcenter sim:scattered
      gpuops readiness --host esx-01 --vcenter sim:scattered
      gpuops readiness --strict --cluster scattered-cluster --vcenter sim:scattered
    """
    from gpuops import api
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.monitoring.readiness import readiness_document, readiness_text

    with open_site(common, saved=saved) as site:
        answer = api.readiness(scope, read_inventory(site, common, saved=saved), site)
    output.show(readiness_text(answer, scope), readiness_document(answer))
    output.leave(report_exit_code(refused=strict and not answer.ready))
