"""The last readings of desktops' vGPUs that `gpuops observe` stored from the hosts' nvidia-smi, for a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuops.advise.idle import vgpu_use_at
from gpuops.errors import GpuopsError
from gpuops.model.desktops.evidence import VgpuUse
from gpuops.model.measurements.measurement import VGPU_USE

if TYPE_CHECKING:
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm

_OLDEST: Final = timedelta(hours=1)
"""The age up to which a reading is returned. The rule of a pool may require a newer one."""
_STEP: Final = timedelta(minutes=5)
_NO_READING: Final = "`gpuops observe` has stored no reading of it by its host's nvidia-smi in the last hour"


class StoredVgpuUse:
    """Implements `VgpuUseSource` by the store of measurements: no host is entered for a snapshot."""

    def __init__(self, store_dir: Path, url: str, warn: Callable[[str], None]) -> None:
        """Make the source. `warn` gets the reason once if the store cannot be read; no night ends because of it."""
        self._store_dir = store_dir
        self._url = url
        self._warn = warn
        self._has_warned = False

    def use(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        try:
            return self._read(vms, inventory)
        except GpuopsError as error:
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"the use of vGPUs is not known: {error.line}")
            return {vm.ref: VgpuUse(None, because="the store of measurements cannot be read") for vm in vms}

    def _read(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        """Return the last reading of each VM by ref, or why there is none. Raises GpuopsError."""
        # imported here, because most sites do not need it
        from gpuops.extras.observe.store_reads import MeasurementReads

        without_reading = {vm.ref: VgpuUse(None, because=_NO_READING) for vm in vms}
        store = MeasurementReads.open_if_exists(self._store_dir, self._url, inventory.vcenter)
        if store is None:
            return without_reading
        now = inventory.taken_at
        with store:  # up to the end of the step that has begun: the newest reading may be in it
            windows = store.windows([vm.ref for vm in vms], [VGPU_USE], now - _OLDEST, now + _STEP)
            use_by_ref = {ref: vgpu_use_at(now, series[VGPU_USE]) for ref, series in windows}
        return without_reading | {ref: use for ref, use in use_by_ref.items() if use is not None}
