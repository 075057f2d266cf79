"""How many VMs may share a GPU: by shares on the command line, by a file of workloads, or by the history of `observe`.

The history shows in each step of five minutes how busy a VM kept its GPU: by vCenter's counter, or by the host's
nvidia-smi where that counter is missing. A VM that shared its GPU used less than it would have used alone. Its use
alone is estimated for best effort, the default of the driver, and for the VMs that are on its GPU today: the history
does not record which VMs were on it earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.api.vms import refuse_unknown_pool
from gpuops.errors import UsageError
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.observe.blocks import FINE_S, WHOLE
from gpuops.extras.observe.store_reads import MeasurementReads
from gpuops.extras.sizing.busy_shares import BusyHistory, BusyShares
from gpuops.extras.sizing.pairs import PairModel, corrections, fit_pairs
from gpuops.extras.sizing.seen_pairs import seen_pairs
from gpuops.extras.sizing.sharing import alone
from gpuops.extras.sizing.size_request import SizeRequest, SizingAnswer, size_history, sizing_pool
from gpuops.model.devices.shared_gpu import ObservedPair
from gpuops.model.measurements.measurement import GPU_USE, VGPU_USE
from gpuops.model.measurements.measurement_settings import Retention
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.rejection import some_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

    from gpuops.extras.observe.blocks import Values

KEPT: Final = timedelta(days=Retention().fine_days)
STEPS: Final = 288
"""The number of steps that are used, spread evenly over all steps."""
FULL: Final = 0.95
"""A GPU with this share of use counts as full: the demand of its VMs is then unknown."""
_WHOLE_USE: Final = 10_000.0
"""The counters are in hundredths of a percent."""
_DAY_S: Final = 86_400
_OBSERVE_HINT: Final = (
    "run gpuops observe --once, every 20 minutes from now on; if vCenter does not report the use of vGPUs, add "
    "--host-shell ssh (gpuops help observe)"
)


def known_history(
    store: tuple[Path, str],
    inventory: Inventory,
    vms: Sequence[Vm],
    together: Collection[Collection[str]],
    since: datetime | None = None,
) -> BusyHistory | None:
    """Return how busy these VMs kept their GPUs since then, or None if no VM has a history.

    Uses steps of five minutes only, so at most the days for which they are stored. `store`: the state directory and the
    URL of the store. `together`: the VMs (ids) of each GPU that several share. Raises StateDamaged.
    """
    oldest = inventory.taken_at - KEPT if since is None else since
    begin_s = int(oldest.timestamp()) // FINE_S * FINE_S
    # up to the end of the step that has begun: -(-a // b) rounds up
    steps = max(0, -(-int(inventory.taken_at.timestamp()) // FINE_S) - begin_s // FINE_S)
    entities = {vm.ref for vm in vms} | {ref for group in together for ref in group}
    use_by_ref: dict[str, NDArray[np.float32]] = {}
    hours: dict[str, float] = {}
    store_reads = MeasurementReads.open_if_exists(*store, inventory.vcenter)
    if store_reads is not None:
        with store_reads:
            for ref, series in store_reads.arrays(entities, (GPU_USE, VGPU_USE), begin_s, steps):
                share, hours[ref] = _use_and_hours(series)
                use_by_ref[ref] = share.astype(np.float32)  # half the memory, for thousands of VMs over weeks
    measured_vms = [vm for vm in vms if hours.get(vm.ref)]
    left_out = {vm.name: "0 h of history" for vm in vms if not hours.get(vm.ref)}
    if not measured_vms:
        return None
    pairs = tuple(seen_pairs(use_by_ref, together, (begin_s + np.arange(steps) * FINE_S) // 3600))
    model = fit_pairs(pairs) if pairs else None
    sampled_steps = _sampled_steps(np.stack([use_by_ref[vm.ref] for vm in measured_vms]))
    sampled_use = {ref: use[sampled_steps].astype(float) for ref, use in use_by_ref.items()}
    full_share = _replace_shared_use(sampled_use, together, model)
    busy_shares = np.stack([sampled_use[vm.ref] for vm in measured_vms], axis=1)
    days = (begin_s + sampled_steps * FINE_S) // _DAY_S
    shares = BusyShares(tuple(vm.name for vm in measured_vms), busy_shares, days)
    first = datetime.fromtimestamp(begin_s + int(sampled_steps[0]) * FINE_S, inventory.taken_at.tzinfo)
    named_pairs = tuple(_named_pairs(pairs, inventory))
    return BusyHistory(shares, tuple(hours[vm.ref] for vm in measured_vms), first, left_out, full_share, named_pairs)


def _use_and_hours(series: Mapping[str, Values]) -> tuple[Floats, float]:
    """Return the share of each step in which the VM used a GPU (NaN: unknown or off), and the hours with samples.

    `series`: for each counter one row (average, highest, fifteenths covered) for each step of five minutes.
    """
    steps = len(series[GPU_USE])
    use, covered = np.full(steps, np.nan), np.zeros(steps)
    for name in (VGPU_USE, GPU_USE):  # where both are known, vCenter's number replaces that of nvidia-smi
        average, _, covered_fifteenths = series[name].T
        use = np.where(covered_fifteenths > 0, np.clip(average / _WHOLE_USE, 0.0, 1.0), use)
        # nvidia-smi is read once in 20 minutes, so one reading covers its step completely
        covered = np.where(covered_fifteenths > 0, WHOLE if name == VGPU_USE else covered_fifteenths, covered)
    return use, float(covered.sum()) / WHOLE * FINE_S / 3600


def _named_pairs(pairs: Sequence[ObservedPair], inventory: Inventory) -> Iterator[ObservedPair]:
    """Yield the pairs with the names of their VMs, without VMs whose name is not unique."""
    name_counts = Counter(vm.name for vm in inventory.vms.values())
    for pair in pairs:
        first_name, second_name = (inventory.vms[ref].name for ref in pair.names)
        if name_counts[first_name] == name_counts[second_name] == 1:
            yield ObservedPair((first_name, second_name), pair.speeds)


def _sampled_steps(used: NDArray[np.float32]) -> NDArray[np.int64]:
    known_steps = np.flatnonzero(~np.isnan(used).all(axis=0))
    return known_steps[np.linspace(0, len(known_steps) - 1, min(STEPS, len(known_steps))).round().astype(np.int64)]


def _replace_shared_use(
    use_by_ref: dict[str, Floats], together: Collection[Collection[str]], pairs: PairModel | None
) -> float:
    """Replace in `use_by_ref` the use of VMs that share a GPU by the use that they would have alone.

    Return the share of steps in which a shared GPU was full, 0 to 1; 0 if no GPU is shared.
    """
    full_steps = steps = 0
    for group in together:
        refs = [ref for ref in group if ref in use_by_ref]
        if len(refs) > 1:
            shared = np.stack([use_by_ref[ref] for ref in refs], axis=1)
            full_steps += int((np.nansum(shared, axis=1) >= FULL).sum())
            steps += len(shared)
            demand = alone(shared)
            if pairs is not None:
                # corrections do not look at days, so all steps may be of one day
                shares = BusyShares(tuple(refs), demand, np.zeros(len(demand), np.int64))
                slowdowns = corrections(pairs, refs, shares.at_work, shares.working)
                demand = np.minimum(1.0, demand * np.maximum(1.0, slowdowns))
            use_by_ref |= dict(zip(refs, demand.T, strict=True))
    return full_steps / steps if steps else 0.0


def size_stated(
    request: SizeRequest,
    workloads: Path | None,
    busy: str | None,
    overlap: str | None,
    of_history: Mapping[str, object],
) -> SizingAnswer | None:
    """Return the answer by stated shares; None if none are stated: the answer then needs the history of VMs.

    `busy` and `overlap` as typed (`0.7`, `70%`); `of_history` has the other options about VMs (`--pool`), None = not
    set. Reads no vCenter. Raises UsageError for options that exclude each other, PolicyError for an invalid file.
    """
    from gpuops.catalog import load
    from gpuops.config.requests_file import load_workloads, share_of
    from gpuops.extras.sizing.size_request import known_profile, size_numbers, size_workloads

    of_vms = {"--vm": request.vm, "--tag": request.tag, **of_history}
    options = [name for name, setting in of_vms.items() if setting is not None]
    if busy is not None and workloads is not None:
        options.append("--workloads")
    stated = "--busy" if busy is not None else "--workloads" if workloads is not None else None
    if stated is not None and options:
        raise UsageError(
            f"{stated} and {options[0]} exclude each other",
            hint="busy shares are either stated or from the history: remove one of the options",
        )
    if overlap is not None and busy is None:
        raise UsageError("--overlap needs --busy", hint="add how busy each VM is alone: --busy 0.7")
    if stated is None:
        return None
    # `share`: of the time that each VM keeps the GPU busy; `part`: of the work that VMs do at one time
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
    refuse_unknown_pool(policy, pool)
    if request.tag is not None or (policy is not None and policy.needs_tags):
        inventory = site.vcenter.with_tags(inventory)
    pool_to_size = sizing_pool(request, inventory, catalog_of(inventory), policy, pool)
    history = known_history(site.measurements_store, inventory, pool_to_size.vms, pool_to_size.together, since)
    if history is None:
        names = some_names(sorted({vm.name for vm in pool_to_size.vms}))
        raise UsageError(f"no measurements of {names} are stored for this period", hint=_OBSERVE_HINT)
    return size_history(request, pool_to_size, history, inventory)
