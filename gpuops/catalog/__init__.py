"""Loads what NVIDIA's documents say about GPUs and vGPU profiles from files that people can read and add to.

`gpus/<board>.yaml` holds one GPU model with its profiles, `mig/<family>.yaml` the GPU instances its family can be cut
into, `index.yaml` the board of each profile name and PCI id, `devices.yaml` what is known of devices without vGPU
profiles. To add a GPU, add its file and a line of the index; no code changes. Only requested boards are read, each once
per process: a fleet has few of the 67.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from gpuops.model.devices.catalog import Board, Catalog, DeviceModel
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID
from gpuops.model.devices.vgpu import parse

__all__ = ["load"]

_INDEX: Final = Path(__file__).parent / "index.yaml"
_DEVICES: Final = Path(__file__).parent / "devices.yaml"


def load(
    *,
    profiles: Iterable[str] = (),
    pci: Iterable[tuple[int, int, int | None]] = (),
    boards: Iterable[str] = (),
    everything: bool = False,
) -> Catalog:
    """Return a catalogue of the boards and devices with any of these profile names, PCI ids or keys.

    Unknown ones are ignored. With `everything`, return all boards and devices.

    `profiles` are ESXi names (`grid_a100-3-20c`), `pci` are (vendor id, device id, subsystem id or None), `boards` the
    keys of board files (`a100`). Where boards share a device id all of them are loaded, and `Catalog.board_by_pci`
    tells them apart. Calls for the same boards return the same `Catalog`. Raises UsageError if a file of the catalogue
    cannot be understood.
    """
    if everything:
        return _catalog(_index().keys, _devices())
    return _load_for(frozenset(profiles), frozenset(pci), frozenset(boards))


@lru_cache(maxsize=1024)
def _load_for(profiles: frozenset[str], pci: frozenset[tuple[int, int, int | None]], boards: frozenset[str]) -> Catalog:
    board_names = {parts.board for parts in map(parse, profiles) if parts}
    devices = {device_id for vendor_id, device_id, _ in pci if vendor_id == NVIDIA_VENDOR_ID}
    # vendor 0: only the name of the GPU is known
    device_types = {(vendor_id, device_id) for vendor_id, device_id, _ in pci if vendor_id != 0}
    # a device with a board file is not in devices.yaml
    device_types -= {(NVIDIA_VENDOR_ID, device_id) for device_id in devices if device_id in _index().by_device}
    models = _devices() if device_types else ()
    device_models = tuple(
        model for model in models if any((model.vendor_id, number) in device_types for number in model.device_ids)
    )
    # the index, a file, is read only if something is looked up in it
    keys = set(boards) | (set(_index().find(board_names, devices)) if board_names or devices else set())
    board_keys = tuple(key for key in _index().keys if key in keys) if keys else ()
    return _catalog(board_keys, device_models) if board_keys or device_models else Catalog()


@dataclass(frozen=True, slots=True)
class _Index:
    """Which board files there are, and what leads to each."""

    keys: tuple[str, ...]
    by_board_name: Mapping[str, str]
    """By the board's part of a profile name, without the brand: older hosts show `grid_`, newer ones `nvidia_`."""
    by_device: Mapping[int, tuple[str, ...]]

    def find(self, board_names: Iterable[str], devices: Iterable[int]) -> tuple[str, ...]:
        """Return the keys of the boards with any of these names or device ids, in the order of the index."""
        keys = {self.by_board_name.get(name) for name in board_names}
        for device in devices:
            keys.update(self.by_device.get(device, ()))
        return tuple(key for key in self.keys if key in keys)


@cache
def _index() -> _Index:
    """Return the index of all board files, from index.yaml."""
    from gpuops.catalog.catalog_files import read

    by_board_name: dict[str, str] = {}
    by_device: dict[int, tuple[str, ...]] = {}
    fields = read(_INDEX)
    keys = fields.keys
    for key in keys:
        row = fields.section(key)
        if prefix := row.maybe_text("prefix"):  # grid_a100- becomes a100
            by_board_name[prefix.partition("_")[2].removesuffix("-")] = key
        for device_id in row.hexadecimals("devices"):
            by_device[device_id] = (*by_device.get(device_id, ()), key)
        row.check_all_read()
    return _Index(keys, by_board_name, by_device)


@cache
def _catalog(keys: tuple[str, ...], devices: tuple[DeviceModel, ...]) -> Catalog:
    return Catalog(tuple(_board(key) for key in keys), devices)


@cache
def _devices() -> tuple[DeviceModel, ...]:
    """Return the devices without vGPU profiles, from devices.yaml."""
    from gpuops.catalog.catalog_files import read

    fields = read(_DEVICES)
    models = []
    for key in fields.keys:
        row = fields.section(key)
        name, vendor_id, device_ids = row.text("name"), row.hexadecimal("vendor"), row.hexadecimals("devices")
        models.append(DeviceModel(key, name, vendor_id, device_ids, row.maybe_number("memory_mib"), row.text("source")))
        row.check_all_read()
    return tuple(models)


@cache
def _board(key: str) -> Board:
    from gpuops.catalog.catalog_files import board

    return board(key)
