"""Reads what `nvidia-smi -q -x` of a host reports about the health of its GPUs.

Elements are those of NVIDIA's nvsmi_device DTD: pci/pci_bus_id, gpu_recovery_action (R565 and later; None on an H100
with R580.159.04), gpu_reset_status/reset_required (before it; `Yes` or `No`), remapped_rows/remapped_row_pending
(Ampere and later).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuops.hostshell.gpu_lines import ABSENT, health_by_cells, shorten, word_of
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.gpu_health import GpuHealth, RecoveryAction
from gpuops.plan.guest.smi import read_gpu_texts

DETAILS: Final = "nvidia-smi -q -x"
_BEGIN, _END = "<nvidia_smi_log>", "</nvidia_smi_log>"
_VALUES: Final = ("mig_mode/current_mig", "ecc_mode/current_ecc", "temperature/gpu_temp", "utilization/gpu_util")
"""Elements that hold an error in place of a value. Others hold texts that users choose, for example names of VMs."""
_YES_NO: Final = {"Yes": True, "No": False}
_ACTIONS: Final = {action.lower(): action for action in RecoveryAction}


def read_details(text: str) -> dict[PciAddress, GpuHealth]:
    """Return the health of each GPU of the answer; {} for an answer that cannot be read."""
    _, begin, document = text.partition(_BEGIN)
    body, end, _ = document.rpartition(_END)  # sentences about GPUs stand before and behind the document
    try:
        gpus = read_gpu_texts(f"{begin}{body}{end}")
    except ValueError:
        return {}
    addresses = [PciAddress.parse_or_none(texts.get("pci/pci_bus_id", "")) for texts in gpus]
    return {address: _health(texts) for address, texts in zip(addresses, gpus, strict=True) if address is not None}


def _health(texts: Mapping[str, str]) -> GpuHealth:
    health = health_by_cells(texts.get(path, "") for path in _VALUES)
    reset = _YES_NO.get(texts.get("gpu_reset_status/reset_required", ""))
    remap = _YES_NO.get(texts.get("remapped_rows/remapped_row_pending", ""))
    health = health.merge(GpuHealth(requires_reset=reset is True, is_row_remap_pending=remap))
    return health.merge(_by_action(word_of(texts.get("gpu_recovery_action", ""))))


def _by_action(word: str) -> GpuHealth:
    action = _ACTIONS.get(word.lower())
    if action is not None or not word or word.lower() in ABSENT:
        return GpuHealth(recovery_action=action)
    # A later driver may ask for an action that has no name here. One that names a reset or a reboot counts as one.
    asks_for_reset = "reset" in word.lower() or "reboot" in word.lower()
    return GpuHealth(requires_reset=asks_for_reset, error=f"recovery action {shorten(word)}")
