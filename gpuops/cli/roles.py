"""`gpuops roles`: what accounts of gpuops may do, as roles of vCenter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.options import Common, spread
from gpuops.cli.repeated import Once

roles = typer.Typer(
    name="roles",
    cls=Once,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Compare vCenter's roles with those that gpuops needs, and make them.",
)
RoleFile = Annotated[Path, typer.Option("--file", metavar="FILE", help="The roles wanted: templates/roles/*.yaml.")]


@roles.command()
@spread
def show(common: Common, file: RoleFile) -> None:
    """Show which of the wanted roles are there, and what each lacks or has too much. Changes nothing.

    \b
    Example:
      gpuops roles show --file templates/roles/night.yaml --vcenter sim:lab
    """
    _brought(common, file, apply=False)


@roles.command()
@spread
def apply(
    common: Common,
    file: RoleFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written; change nothing.")] = False,
) -> None:
    """Make the wanted roles in vCenter, and bring those of the same name to what is wanted.

    Needs Authorization.ModifyRoles. Gives no account any role: that is an administrator's, where each `where` says.

    \b
    Example:
      gpuops roles apply --file templates/roles/night.yaml --vcenter sim:lab
    """
    _brought(common, file, apply=not dry_run)


def _brought(common: Common, file: Path, *, apply: bool) -> None:
    from gpuops.api import roles as bring
    from gpuops.cli.opening import open_site
    from gpuops.config.role_file import load_roles
    from gpuops.report.doctor import roles_document, roles_text

    wishes = load_roles(file)
    with open_site(common) as site:
        found = bring(wishes, site, apply=apply)
    output.show(roles_text(found), roles_document(found))
