"""`gpuops readiness`: whether hosts can be emptied, and whether one can be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import report_exit_code
from gpuops.plan.core.scope import Scope


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
