"""How many VMs may share a GPU: by stated numbers, by a file of workloads, or by the history of `observe`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from gpuops.api.vms import refuse_unknown_pool
from gpuops.errors import UsageError
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.sizing.size_request import SizeRequest, SizingAnswer, size_history, sizing_pool
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory


def size_stated(
    request: SizeRequest,
    workloads: Path | None,
    busy: str | None,
    overlap: str | None,
    of_history: Mapping[str, object],
) -> SizingAnswer | None:
    """Return the answer by stated shares; None if none are stated, and the history of VMs is needed. Reads no vCenter.

    `busy` and `overlap` as typed (`0.7`, `70%`); `of_history` has the other options about VMs (`--pool`), None = not
    set. Raises UsageError for options that exclude each other, PolicyError for the file.
    """
    from gpuops.catalog import load
    from gpuops.config.workloads_file import load_workloads, share_of
    from gpuops.extras.sizing.size_request import known_profile, size_numbers, size_workloads

    of_vms = {"--vm": request.vm, "--tag": request.tag, **of_history}
    options = [name for name, setting in of_vms.items() if setting is not None]
    if busy is not None and workloads is not None:
        options.append("--workloads")
    stated = "--busy" if busy is not None else "--workloads" if workloads is not None else None
    if stated is not None and options:
        raise UsageError(
            f"{stated} and {options[0]} exclude each other", hint="busy shares are stated, or measured: leave one out"
        )
    if overlap is not None and busy is None:
        raise UsageError("--overlap is of --busy", hint="say how busy each VM is alone: --busy 0.7")
    if stated is None:
        return None
    share = share_of(busy, "--busy") if busy is not None else None
    part = share_of(overlap, "--overlap") if overlap is not None else 1.0
    profile = None if request.profile is None else known_profile(request.profile, load(everything=True))
    if share is not None:
        return size_numbers(request, share, part, profile)
    assert workloads is not None, "one of the two is stated"
    return size_workloads(request, load_workloads(workloads), profile)


def size_by_history(
    request: SizeRequest,
    inventory: Inventory,
    site: Site,
    policy: Policy | None = None,
    *,
    pool: str | None = None,
    since: datetime | None = None,
) -> SizingAnswer:
    """Return how many of these VMs may share a GPU, by the history of `observe` since then. Changes nothing.

    Raises UsageError for VMs that are not named, do not exist or have no history; ProfileUnknown, and Refused for a
    profile that no host offers; VmNotFound, VmAmbiguous, StateDamaged.
    """
    from gpuops.extras.sizing.busy_shares import busy_history

    refuse_unknown_pool(policy, pool)
    if request.tag is not None or (policy is not None and policy.needs_tags):
        inventory = site.vcenter.with_tags(inventory)
    pool_to_size = sizing_pool(request, inventory, catalog_of(inventory), policy, pool)
    history = busy_history(site.measurements_store, inventory, pool_to_size.vms, pool_to_size.together, since)
    return size_history(request, pool_to_size, history, inventory)
