"""`gpuops diagnose`: which component slows a VM down; and what people found, from which the next model learns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import completion, output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions
from gpuops.console.spread import spread
from gpuops.errors import UsageError
from gpuops.extras.diagnosis.case import Component

diagnose = VerbTable("diagnose")


@diagnose.callback(invoke_without_command=True, no_args_is_help=False)
@spread
def look(
    context: typer.Context,
    common: CommonOptions,
    vm: Annotated[
        str | None,
        typer.Option(metavar="VM", autocompletion=completion.vms, help="Only VMs named so (ml-*), or moid:..."),
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Only VMs on this host.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="SINCE", help="By history since then: 2d or 2026-11-20; default: 24 hours.")
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Tell the target's receivers of what is at least so probable: 80% (help timers)."
        ),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Judge the labelled cases of its files *.jsonl instead; no vCenter."),
    ] = None,
) -> None:
    """Say which component slows VMs down, how probable it is, and by which numbers. Changes nothing in vCenter.

    It uses the measurements of `gpuops observe`, one bulk read, settings of hosts, and a model. It names the components
    that cannot be judged here, and what they need.

    \b
    Example:
      gpuops observe --once --vcenter sim:lab
      gpuops diagnose --vm 'vdi-*' --vcenter sim:lab
    """
    from gpuops.config.date_text import parse_since
    from gpuops.config.requests_file import share_of
    from gpuops.console.opening import journal_of, notice_way_of, open_site, read_inventory
    from gpuops.extras.diagnosis.case_file import load_cases
    from gpuops.extras.diagnosis.diagnosing import diagnose as diagnose_vms
    from gpuops.extras.diagnosis.diagnosing import judge_cases, tell_diagnosis
    from gpuops.extras.diagnosis.view import DiagnoseCasesDocument, cases_text, diagnosed_document, diagnosed_text

    if context.invoked_subcommand is not None:
        context.obj = common
        return
    if cases is not None:
        of_vms = {"--vm": vm, "--host": host, "--since": since, "--notify": notify}
        conflicting = [name for name, setting in of_vms.items() if setting is not None]
        if conflicting:
            raise UsageError(
                f"--cases and {conflicting[0]} exclude each other",
                hint="leave one of them out: cases are read from files",
            )
        judged = judge_cases(load_cases(cases), journal_of(common)[0])
        output.show(cases_text(judged), DiagnoseCasesDocument.made_of(judged))
        return
    way, least = (None, 1.0) if notify is None else (notice_way_of(common), share_of(notify, "--notify"))
    with open_site(common) as site:
        inventory = read_inventory(site, common)
        begin = parse_since("--since", since, inventory.taken_at) if since is not None else None
        diagnosis = diagnose_vms(inventory, site, vm=vm, host=host, since=begin)
    output.show(diagnosed_text(diagnosis, inventory), diagnosed_document(diagnosis, inventory))
    if way is not None:
        tell_diagnosis(way, diagnosis, least)


@diagnose.command()
@spread
def confirm(
    common: CommonOptions, name: Annotated[str, typer.Argument(metavar="ID", help="Of the diagnosis.")]
) -> None:
    """Note that what a diagnosis said first was at fault: the next model learns from it. Asks no vCenter.

    \b
    Example:
      gpuops diagnose confirm d-0123456789
    """
    _settle(common, name, None)


@diagnose.command()
@spread
def correct(
    common: CommonOptions,
    name: Annotated[str, typer.Argument(metavar="ID", help="Of the diagnosis.")],
    component: Annotated[Component, typer.Argument(metavar="COMPONENT", help="What was at fault, or none.")],
) -> None:
    """Note which component was at fault instead of what a diagnosis said: the next model learns it. Asks no vCenter.

    \b
    Example:
      gpuops diagnose correct d-0123456789 cpu-ready
    """
    _settle(common, name, component)


@diagnose.command()
@spread
def train(common: CommonOptions) -> None:
    """Make the next model, of made and confirmed cases; a worse one never replaces the one that stands.

    It takes a minute, and scikit-learn (extra `diagnose`). Asks no vCenter.

    \b
    Example:
      gpuops diagnose train
    """
    from gpuops.console.opening import journal_of
    from gpuops.extras.diagnosis.diagnosing import train as train_model
    from gpuops.extras.diagnosis.view import DiagnoseTrainDocument, trained_text

    training = train_model(journal_of(common)[0])
    output.show(trained_text(training), DiagnoseTrainDocument.made_of(training))


def _settle(common: CommonOptions, name: str, component: Component | None) -> None:
    from gpuops.console.opening import journal_of
    from gpuops.extras.diagnosis.diagnosing import settle
    from gpuops.extras.diagnosis.view import DiagnoseSettledDocument, settled_text

    suspects = settle(journal_of(common)[0], name, component)
    output.show(settled_text(name, suspects), DiagnoseSettledDocument(name, list(suspects)))
