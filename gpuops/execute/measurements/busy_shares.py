"""Reads from the store of measurements how busy each VM keeps its GPU, step by step. Writes nothing.

By vCenter's counter of a VM's GPU use, and where a step has none by what the host's own nvidia-smi told of its vGPU. A
VM that shared its GPU got less than it would have used alone: that is worked out by the VMs on its GPU today, which may
not be those of then, under best effort, the driver's default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.advise.sizing.pairs import PairModel, corrections, fit_pairs
from gpuops.advise.sizing.question import BusyHistory, BusyShares
from gpuops.advise.sizing.seen_pairs import seen_pairs
from gpuops.advise.sizing.sharing import alone
from gpuops.errors import UsageError
from gpuops.execute.measurements.packing import WHOLE
from gpuops.execute.measurements.rolling_up import FINE_S
from gpuops.execute.measurements.store_reads import MeasurementReads
from gpuops.model.devices.shared_gpu import ObservedPair
from gpuops.model.measurements.measurement import GPU_USE, VGPU_USE, Retention
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuops.execute.measurements.packing import Values

    Floats = NDArray[np.float64]

KEPT: Final = timedelta(days=Retention().fine_days)
STEPS: Final = 288
"""So many steps are looked at, spread over all that are there."""
FULL: Final = 0.95
"""A GPU that is used that much counts as full: what its VMs wanted is not known."""
_WHOLE_USE: Final = 10_000.0
"""The counters are in hundredths of a percent."""
_DAY_S: Final = 86_400
_NEXT: Final = (
    "run gpuops observe --once, every 20 minutes from now on; where vCenter does not tell the use of vGPUs, with "
    "--host-shell ssh (gpuops help observe)"
)


def busy_history(
    store: tuple[Path, str],
    inventory: Inventory,
    vms: Sequence[Vm],
    together: Collection[Collection[str]],
    since: datetime | None = None,
) -> BusyHistory:
    """How busy these VMs kept their GPUs since then, as far as steps of five minutes are kept.

    Arguments as of `known_history`. Raises UsageError where there is no history of any of them; StateDamaged.
    """
    found = known_history(store, inventory, vms, together, since)
    if found is None:
        raise UsageError(f"0 h of history for {_named(sorted({vm.name for vm in vms}))}", hint=_NEXT)
    return found


def known_history(
    store: tuple[Path, str],
    inventory: Inventory,
    vms: Sequence[Vm],
    together: Collection[Collection[str]],
    since: datetime | None = None,
) -> BusyHistory | None:
    """The same; None = there is no history of any of them.

    `store`: the state directory and the URL of the store. `together`: the VMs (ids) of each GPU that several share.
    Raises StateDamaged.
    """
    oldest = inventory.taken_at - KEPT if since is None else since
    begin_s = int(oldest.timestamp()) // FINE_S * FINE_S
    steps = max(0, -(-int(inventory.taken_at.timestamp()) // FINE_S) - begin_s // FINE_S)
    asked = {vm.ref for vm in vms} | {ref for group in together for ref in group}
    used: dict[str, NDArray[np.float32]] = {}
    hours: dict[str, float] = {}
    found = MeasurementReads.found(*store, inventory.vcenter)
    if found is not None:
        with found:
            for ref, series in found.arrays(asked, (GPU_USE, VGPU_USE), begin_s, steps):
                share, hours[ref] = _used(series)
                used[ref] = share.astype(np.float32)  # of thousands of VMs over weeks half the memory
    measured = [vm for vm in vms if hours.get(vm.ref)]
    left_out = {vm.name: "0 h of history" for vm in vms if not hours.get(vm.ref)}
    if not measured:
        return None
    pairs = tuple(seen_pairs(used, together, (begin_s + np.arange(steps) * FINE_S) // 3600))
    model = fit_pairs(pairs) if pairs else None
    looked_at = _looked_at(np.stack([used[vm.ref] for vm in measured]))
    some = {ref: values[looked_at].astype(float) for ref, values in used.items()}
    full = _worked_out(some, together, model)
    busy = np.stack([some[vm.ref] for vm in measured], axis=1)
    days = (begin_s + looked_at * FINE_S) // _DAY_S
    shares = BusyShares(tuple(vm.name for vm in measured), busy, days)
    first = datetime.fromtimestamp(begin_s + int(looked_at[0]) * FINE_S, inventory.taken_at.tzinfo)
    named = tuple(_named_pairs(pairs, inventory))
    return BusyHistory(shares, tuple(hours[vm.ref] for vm in measured), first, left_out, full, named)


def _used(series: Mapping[str, Values]) -> tuple[Floats, float]:
    """The share of each step that the VM used a GPU, NaN = unknown or off, and of how many hours there are samples.

    `series`: for each counter a row (average, highest, fifteenths covered) a step of five minutes.
    """
    steps = len(series[GPU_USE])
    used, covered = np.full(steps, np.nan), np.zeros(steps)
    for name in (VGPU_USE, GPU_USE):
        average, _, there = series[name].T
        used = np.where(there > 0, np.clip(average / _WHOLE_USE, 0.0, 1.0), used)
        # one reading of nvidia-smi stands for the 20 minutes until the next, and a step for no more than itself
        covered = np.where(there > 0, WHOLE if name == VGPU_USE else there, covered)
    return used, float(covered.sum()) / WHOLE * FINE_S / 3600


def _named_pairs(pairs: Sequence[ObservedPair], inventory: Inventory) -> Iterator[ObservedPair]:
    """By the names of VMs; of VMs that share a name none."""
    times = Counter(vm.name for vm in inventory.vms.values())
    for pair in pairs:
        one, other = (inventory.vms[ref].name for ref in pair.names)
        if times[one] == times[other] == 1:
            yield ObservedPair((one, other), pair.speeds)


def _looked_at(used: NDArray[np.float32]) -> NDArray[np.int64]:
    """The steps that are looked at, of those in which any VM is known."""
    known = np.flatnonzero(~np.isnan(used).all(axis=0))
    return known[np.linspace(0, len(known) - 1, min(STEPS, len(known))).round().astype(np.int64)]


def _worked_out(used: dict[str, Floats], together: Collection[Collection[str]], pairs: PairModel | None) -> float:
    """Makes what VMs used beside others what they had used alone; the share of these steps in which a GPU was full."""
    full = steps = 0
    for group in together:
        refs = [ref for ref in group if ref in used]
        if len(refs) > 1:
            shared = np.stack([used[ref] for ref in refs], axis=1)
            full += int((np.nansum(shared, axis=1) >= FULL).sum())
            steps += len(shared)
            wanted = alone(shared)
            if pairs is not None:
                shares = BusyShares(tuple(refs), wanted, np.zeros(len(wanted), np.int64))
                longer = corrections(pairs, refs, shares.at_work, shares.working)
                wanted = np.minimum(1.0, wanted * np.maximum(1.0, longer))
            used |= dict(zip(refs, wanted.T, strict=True))
    return full / steps if steps else 0.0


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
