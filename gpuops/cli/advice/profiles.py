"""`gpuops profiles`: the vGPU profiles of a GPU model, and which may run together. Asks no vCenter."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.spread import spread


def _models(incomplete: str) -> list[str]:
    from gpuops.catalog import load

    return [board.key for board in load(everything=True).boards if board.key.startswith(incomplete.lower())]


@spread
def profiles(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="GPU model: a100. Default: list them.", autocompletion=_models),
    ] = None,
) -> None:
    """Show the vGPU profiles of a GPU model, and which of them may run on one GPU together.

    It is read from the catalogue that comes with gpuops (gpuops help profiles); no vCenter is asked.

    \b
    Examples:
      gpuops profiles
      gpuops profiles a100
      gpuops profiles 'NVIDIA L40S' --output json
    """
    from gpuops.advise.gpu_profiles import profiles_of
    from gpuops.catalog import load
    from gpuops.plan.capacity.gpu_models import board_meant
    from gpuops.report.advice.gpu_profiles import ProfilesModelsDocument, models_text, profiles_document, profiles_text

    catalog = load(everything=True)
    if model is None:
        output.show(models_text(catalog.boards), ProfilesModelsDocument.from_attributes(models=catalog.boards))
        return
    answer = profiles_of(board_meant(model, catalog))
    output.show(profiles_text(answer), profiles_document(answer))
