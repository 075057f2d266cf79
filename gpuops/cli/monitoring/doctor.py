"""`gpuops doctor` and `gpuops roles`: what stands in the way of other commands, and what accounts of gpuops may do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.commands import VerbTable
from gpuops.cli.options import CommonOptions, HostShellOptions
from gpuops.cli.spread import reads_sites, spread
from gpuops.errors import UsageError
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
    predictions: Annotated[
        bool, typer.Option("--predictions", help="List where vCenter did something else than was predicted.")
    ] = False,
    assumptions: Annotated[
        bool,
        typer.Option("--assumptions", help="List the rules gpuops goes by, and what the journal says of them."),
    ] = False,
) -> None:
    """Say what stands in the way on hosts, GPUs and VMs, each with its reason and what to do. Changes nothing.

    With --host-shell ssh the hosts' own nvidia-smi is asked too, for MIG mode and ECC. With --predictions or
    --assumptions no vCenter is asked: the journal has what each step was predicted to do, and what vCenter did.

    \b
    Examples:
      gpuops doctor --vcenter sim:lab
      gpuops doctor --strict --cluster lab-cluster --vcenter sim:lab
      gpuops doctor --roles templates/roles/night.yaml --vcenter sim:lab
      gpuops doctor --policy templates/policy.yaml --vcenter sim:lab
      gpuops doctor --predictions
      gpuops doctor --assumptions
    """
    if predictions or assumptions:
        alone = roles is None and policy is None and scope == Scope() and not (predictions and assumptions)
        _list_past(common, "--assumptions" if assumptions else "--predictions", alone=alone, strict=strict)
        return
    from gpuops.api import doctor as examine
    from gpuops.cli.opening import open_site, remember
    from gpuops.config.policy import load_policy
    from gpuops.config.role_file import load_roles
    from gpuops.report.monitoring.doctor import doctor_document, doctor_text

    wishes = load_roles(roles) if roles is not None else ()
    called = (load_policy(policy), policy) if policy is not None else None
    with open_site(common) as site:
        host_shell.give_to(site)
        found = examine(site, scope, wishes, called)
    remember(common, found.inventory)
    output.show(doctor_text(found), doctor_document(found))
    if strict and not found.healthy:
        raise typer.Exit(3)


def _list_past(common: CommonOptions, option: str, *, alone: bool, strict: bool) -> None:
    """Show what the journal says of past predictions; with `strict` a misprediction is exit code 3."""
    from gpuops.api import assumptions, past_predictions
    from gpuops.cli.opening import journal_of
    from gpuops.plan.doctor.assumptions import judge_assumptions
    from gpuops.report.assumptions import assumptions_document, assumptions_text
    from gpuops.report.prediction import predictions_document, predictions_text

    if not alone:
        raise UsageError(
            f"{option} is about what was done: it goes with no host, cluster, --roles or --policy",
            hint=f"gpuops doctor {option} lists all of them",
        )
    state_dir, url = journal_of(common)
    past = past_predictions(state_dir, url)
    if option == "--assumptions":
        rows = judge_assumptions(assumptions().values(), past)
        output.show(assumptions_text(rows, past), assumptions_document(rows, past))
    else:
        output.show(predictions_text(past), predictions_document(past))
    if strict and past.wrong:
        raise typer.Exit(3)


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
    from gpuops.cli.opening import open_site
    from gpuops.config.role_file import load_roles
    from gpuops.report.monitoring.doctor import roles_document, roles_text

    wishes = load_roles(file)
    with open_site(common) as site:
        found = bring(wishes, site, apply=apply)
    output.show(roles_text(found), roles_document(found))
