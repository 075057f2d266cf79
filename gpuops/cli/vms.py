"""`gpuops attach`, `detach` and `defrag`: give VMs GPUs, take them away, and move VMs to free GPUs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, HostShellOptions, RunOptions, Saved
from gpuops.console.spread import spread
from gpuops.errors import UsageError
from gpuops.plan.moving.defrag import Defrag
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach


@spread
def attach(
    common: CommonOptions,
    run_options: RunOptions,
    request: Attach,
    host_shell: HostShellOptions,
    inventory_file: Saved = None,
) -> None:
    """Give a VM vGPUs, whole GPUs or a device group: in one reconfiguration, or not at all.

    A second run changes nothing and says so. With --host-shell ssh gpuops runs nvidia-smi on the hosts to find where
    vGPUs lie on GPUs in MIG or mixed-size mode, which vCenter does not report.

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

    carry_out(
        partial(run, request), "attach", common, run_options, host_shell=host_shell, inventory_file=inventory_file
    )


@spread
def detach(common: CommonOptions, run_options: RunOptions, request: Detach, inventory_file: Saved = None) -> None:
    """Take GPU devices from a VM; with the last one, also restore the settings that attach changed.

    A second run changes nothing and says so.

    \b
    Examples:
      gpuops detach --vm ml-01 --profile a100-3-20c --vcenter sim:lab
      gpuops detach --vm ml-05 --all --dry-run --vcenter sim:lab
    """
    from gpuops.api import run
    from gpuops.console.running import carry_out

    carry_out(partial(run, request), "detach", common, run_options, inventory_file=inventory_file)


@spread
def defrag(
    common: CommonOptions,
    request: Defrag,
    whole_gpus: Annotated[
        bool, typer.Option("--whole-gpus", help="Free whole GPUs, so that nothing runs on them; the default.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the moves and what they free; move nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before VMs are moved.")] = False,
    moves_policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", metavar="FILE", help="Make the moves that `defrag` of this rotation policy allows now."
        ),
    ] = None,
    inventory_file: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Use a saved inventory, without a vCenter.")
    ] = None,
) -> None:
    """Move as few VMs as possible to free the most whole GPUs, or slots of a profile.

    With --budget N it plans the N moves after which the least free memory is fragmented (gpuops help inventory).

    With --policy FILE only the budget and the windows of the policy count: for cron (gpuops help place).

    Each move is feasible once those before it are done. No VM is suspended; VMs that cannot move are listed with the
    reason.

    \b
    Examples:
      gpuops defrag --dry-run --vcenter sim:scattered
      gpuops defrag --profile a40-24q --max-moves 2 --dry-run --vcenter sim:scattered
      gpuops defrag --budget 4 --dry-run --vcenter sim:scattered
      gpuops defrag --yes --vcenter sim:scattered
      gpuops defrag --policy /etc/gpuops/vdi.yaml --yes --quiet --vcenter prod
    """
    if whole_gpus and (request.profile is not None or request.budget is not None):
        other = "--profile" if request.profile is not None else "--budget"
        raise UsageError(f"{other} and --whole-gpus exclude each other", hint="run the command once with each")

    if moves_policy is not None and (whole_gpus or inventory_file is not None or request != Defrag()):
        raise UsageError(
            "--policy excludes the options that choose moves, and --inventory", hint="use --policy without them"
        )

    from gpuops import api
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.console.running import carry_out, policy_of_run
    from gpuops.report.vms.defrag_view import DefragDocument, defrag_text

    if moves_policy is not None:
        rules = policy_of_run(moves_policy, "defrag", common, looks_only=dry_run)
        run_by_policy = partial(api.defrag_by_policy, rules)
        run_options = RunOptions(yes=yes, dry_run=dry_run)
        carry_out(run_by_policy, "defrag-execute", common, run_options, require_verified=True)
        return
    if not dry_run and inventory_file is None:
        carry_out(
            partial(api.defrag_execute, request), "defrag-execute", common, RunOptions(yes=yes), require_verified=True
        )
        return
    with open_site(common, inventory_file=inventory_file) as site:
        defragmentation = api.defrag(request, read_inventory(site, common, inventory_file=inventory_file), site)
    output.show(defrag_text(defragmentation), DefragDocument.made_of(defragmentation))
