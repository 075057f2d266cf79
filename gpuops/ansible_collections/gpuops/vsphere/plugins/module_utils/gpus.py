# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a VM is to have or to lose: the arguments of `vm_gpu`, and of each VM of `vm_gpus`."""

from __future__ import annotations

STATE = {"type": "str", "choices": ["present", "absent"], "default": "present"}

OPTIONS = {
    "profile": {"type": "str"},
    "count": {"type": "int"},
    "device": {"type": "list", "elements": "str", "default": []},
    "dynamic": {"type": "bool", "default": False},
    "label": {"type": "str"},
    "device_type": {"type": "list", "elements": "str", "default": []},
    "device_group": {"type": "str"},
    "all": {"type": "bool", "default": False},
    "replace": {"type": "str"},
    "add": {"type": "bool", "default": False},
    "move": {"type": "str", "choices": ["cold"]},
    "pin": {"type": "str", "choices": ["auto", "never"]},
    "numa": {"type": "str", "choices": ["required", "preferred", "none"]},
    "power": {"type": "str", "choices": ["refuse", "cycle", "off", "on"]},
    "host": {"type": "str"},
    "keep_free": {"type": "list", "elements": "str"},
}
