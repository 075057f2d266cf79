"""Keys of the passthrough devices of a VM, and the VMX names that ESXi makes of them.

Recorded on vCenter 8.0.3 (build 25197330) and ESXi 8.0.3 with hardware version 21 (govmomi's research note "NIC unit
numbers", experiment E14): DirectPath devices have the keys 13000, 13001, ..., SR-IOV network cards 13031, 13030, ...;
a device keeps its key when another one is removed, and the next device gets the key that became free. That vGPUs are
numbered like DirectPath devices is inferred. (assumption: passthrough-device-keys, assumption: vgpu-device-keys)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final

FIRST_DEVICE_KEY: Final = 13000


def passthru_number(key: int) -> int:
    """Return N of `pciPassthruN`, the VMX name of the device with this key: key - 13000 (see the module's source).

    N is not the position of the device: the only vGPU of a VM is `pciPassthru0`, whether the VM's SR-IOV network card
    (`pciPassthru31`) is listed before it or not.
    """
    return key - FIRST_DEVICE_KEY


def next_device_keys(used_keys: Iterable[int]) -> Iterator[int]:
    """Yield the keys that vCenter gives to the next vGPUs and DirectPath devices of a VM that has the keys `used_keys`.

    They count upwards from 13000, and gaps are filled first: after 13000 and 13002 come 13001, 13003, ...
    """
    existing_keys = set(used_keys)
    return (key for key in count(FIRST_DEVICE_KEY) if key not in existing_keys)
