"""`gpuops attach` and `gpuops detach`: give a VM GPUs, and take them from it."""

from __future__ import annotations

from functools import partial

from gpuops.console.options import CommonOptions, HostShellOptions, RunOptions, Saved
from gpuops.console.spread import spread
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach


@spread
def attach(
    common: CommonOptions,
    run_options: RunOptions,
    request: Attach,
    host_shell: HostShellOptions,
    saved: Saved = None,
) -> None:
    """Give a VM vGPUs, whole GPUs or a device group: in one reconfiguration, or not at all.

    A second run changes nothing and says so. With --host-shell ssh the hosts' own nvidia-smi is asked where vGPUs lie
    on GPUs in MIG or mixed-size mode, which vCenter does not tell.

    \b
    Examples:
      gpuops attach --vm ml-07 --profile a100-3-20c --vcenter sim:lab
      gpuops attach ml-07 --profile a100-3-20c --vcenter sim:lab
      gpuops attach --vm ml-07 --profile a100-3-20c --power on --explain --dry-run --vcenter sim:lab
      gpuops attach --vm ml-03 --device 0000:5e:00.0 --vcenter sim:lab
      gpuops attach --vm ml-08 --dynamic --label l40s-ml --vcenter sim:lab
    """
    from gpuops.api import run
    from gpuops.console.running import carry_out

    carry_out(partial(run, request), "attach", common, run_options, host_shell=host_shell, saved=saved)


@spread
def detach(common: CommonOptions, run_options: RunOptions, request: Detach, saved: Saved = None) -> None:
    """Take GPU devices from a VM; with the last one, what attach changed is put back exactly.

    A second run changes nothing and says so.

    \b
    Examples:
      gpuops detach --vm ml-01 --profile a100-3-20c --vcenter sim:lab
      gpuops detach --vm ml-05 --all --dry-run --vcenter sim:lab
    """
    from gpuops.api import run
    from gpuops.console.running import carry_out

    carry_out(partial(run, request), "detach", common, run_options, saved=saved)
