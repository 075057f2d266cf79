"""`gpuops diagnose`: which component slows a VM down, and commands by which admins confirm or correct a diagnosis."""

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
def diagnose_selected(
    context: typer.Context,
    common: CommonOptions,
    vm: Annotated[
        str | None,
        typer.Option(
            metavar="VM",
            autocompletion=completion.vms,
            help="Only the VM of this name, VMs of a pattern (ml-*), or moid:...",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Only VMs on this host.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="SINCE", help="Use measurements since then: 2d or 2026-11-20; default: 24 hours."),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Send the target's receivers what is at least this probable: 80% (gpuops help timers).",
        ),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Judge the labelled cases in its files *.jsonl instead of VMs; reads no vCenter."
        ),
    ] = None,
) -> None:
    """Show which component slows VMs down, with its probability and the evidence. Changes nothing in vCenter.

    It uses the measurements of `gpuops observe`, one bulk read, settings of hosts, and a model. It names the components
    that cannot be judged here, and what they need.

    \b
    Example:
      gpuops observe --once --vcenter prod
      gpuops diagnose --vm 'vdi-*' --vcenter prod
    """
    from gpuops.config.date_text import parse_since
    from gpuops.config.requests_file import share_of
    from gpuops.console.opening import journal_of, notice_way_of, open_site, read_inventory
    from gpuops.extras.diagnosis.case_file import load_cases
    from gpuops.extras.diagnosis.diagnosing import diagnose as diagnose_vms
    from gpuops.extras.diagnosis.diagnosing import judge_cases, send_notice_of_diagnosis
    from gpuops.extras.diagnosis.view import DiagnoseCasesDocument, cases_text, diagnosed_document, diagnosed_text

    if context.invoked_subcommand is not None:
        context.obj = common
        return
    if cases is not None:
        options_for_vms = {"--vm": vm, "--host": host, "--since": since, "--notify": notify}
        conflicting = [name for name, setting in options_for_vms.items() if setting is not None]
        if conflicting:
            raise UsageError(
                f"--cases and {conflicting[0]} exclude each other",
                hint=f"remove {conflicting[0]}: --cases judges the cases in files, and no VM of a vCenter",
            )
        judged = judge_cases(load_cases(cases), journal_of(common)[0])
        output.show(cases_text(judged), DiagnoseCasesDocument.made_of(judged))
        return
    notice_way, least_share = (None, 1.0) if notify is None else (notice_way_of(common), share_of(notify, "--notify"))
    with open_site(common) as site:
        inventory = read_inventory(site, common)
        begin = parse_since("--since", since, inventory.taken_at) if since is not None else None
        diagnosis = diagnose_vms(inventory, site, vm=vm, host=host, since=begin)
    output.show(diagnosed_text(diagnosis, inventory), diagnosed_document(diagnosis, inventory))
    if notice_way is not None:
        send_notice_of_diagnosis(notice_way, diagnosis, least_share)


@diagnose.command()
@spread
def confirm(
    common: CommonOptions,
    name: Annotated[str, typer.Argument(metavar="ID", help="The id that `gpuops diagnose` shows.")],
) -> None:
    """Confirm that the first suspect of a diagnosis was at fault; the next model learns from it. Reads no vCenter.

    \b
    Example:
      gpuops diagnose confirm d-0123456789
    """
    _store_finding(common, name, None)


@diagnose.command()
@spread
def correct(
    common: CommonOptions,
    name: Annotated[str, typer.Argument(metavar="ID", help="The id that `gpuops diagnose` shows.")],
    component: Annotated[
        Component, typer.Argument(metavar="COMPONENT", help="The component that was at fault, or none.")
    ],
) -> None:
    """Store which component was at fault instead of the first suspect; the next model learns it. Reads no vCenter.

    \b
    Example:
      gpuops diagnose correct d-0123456789 cpu-ready
    """
    _store_finding(common, name, component)


@diagnose.command()
@spread
def train(common: CommonOptions) -> None:
    """Train the next model with generated and confirmed cases; it replaces the current model unless it is worse.

    It takes a minute, and needs scikit-learn (extra `diagnose`). Reads no vCenter.

    \b
    Example:
      gpuops diagnose train
    """
    from gpuops.console.opening import journal_of
    from gpuops.extras.diagnosis.diagnosing import train as train_model
    from gpuops.extras.diagnosis.view import DiagnoseTrainDocument, trained_text

    training = train_model(journal_of(common)[0])
    output.show(trained_text(training), DiagnoseTrainDocument.made_of(training))


def _store_finding(common: CommonOptions, name: str, component: Component | None) -> None:
    """Store the component at fault for the diagnosis; None = its first suspect."""
    from gpuops.console.opening import journal_of
    from gpuops.extras.diagnosis.diagnosing import settle
    from gpuops.extras.diagnosis.view import DiagnoseSettledDocument, settled_text

    suspects = settle(journal_of(common)[0], name, component)
    output.show(settled_text(name, suspects), DiagnoseSettledDocument(name, list(suspects)))
