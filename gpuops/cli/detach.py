"""`gpuops detach`: take GPUs from a VM, and put back what attach changed."""

from __future__ import annotations

from gpuops.cli.options import Acting, Common, Saved, spread
from gpuops.plan.vm.detach import Detach


@spread
def detach(common: Common, acting: Acting, request: Detach, saved: Saved = None) -> None:
    """Take GPU devices from a VM; with the last one, what attach changed is put back exactly.

    A second run changes nothing and says so.

    \b
    Examples:
      gpuops detach --vm ml-01 --profile a100-3-20c --vcenter sim:lab
      gpuops detach --vm ml-05 --all --dry-run --vcenter sim:lab
    """
    from gpuops.api import run
    from gpuops.cli.running import carry_out

    carry_out(
        lambda site, apply, consent: run(request, site, apply=apply, consent=consent),
        "detach",
        common,
        acting,
        saved=saved,
    )
