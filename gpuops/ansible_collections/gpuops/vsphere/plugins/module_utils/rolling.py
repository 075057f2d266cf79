# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether and how hosts are rebooted for a setting that waits for it: the arguments, as in the fragment `rolling`."""

from __future__ import annotations

ROLLING = {
    "reboot": {"type": "str", "choices": ["rolling"]},
    "max_hosts": {"type": "int"},
    "window": {"type": "str"},
    "vms": {"type": "str", "choices": ["move", "shut-down", "power-off"]},
    "vsan_mode": {"type": "str", "choices": ["ensureObjectAccessibility", "evacuateAllData", "noAction"]},
}


def rebooting(module):
    """What the task says of it."""
    return {name: module.params[name] for name in ROLLING}
