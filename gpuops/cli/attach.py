"""`gpuops attach`: give a VM GPUs."""

from __future__ import annotations

from gpuops.cli.options import Acting, Common, Saved, spread
from gpuops.plan.vm.attach import Attach


@spread
def attach(common: Common, acting: Acting, request: Attach, saved: Saved = None) -> None:
    """Give a VM vGPUs, whole GPUs or a device group: in one reconfiguration, or not at all.

    A second run changes nothing and says so.

    \b
    Examples:
      gpuops attach --vm ml-07 --profile a100-3-20c --vcenter sim:lab
      gpuops attach --vm ml-07 --profile a100-3-20c --power on --explain --dry-run --vcenter sim:lab
      gpuops attach --vm ml-03 --device 0000:5e:00.0 --vcenter sim:lab
      gpuops attach --vm ml-08 --dynamic --label l40s-ml --vcenter sim:lab
    """
    from gpuops.api import run
    from gpuops.cli.running import carry_out

    carry_out(
        lambda site, apply, consent: run(request, site, apply=apply, consent=consent),
        "attach",
        common,
        acting,
        saved=saved,
    )
