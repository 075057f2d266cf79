# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
"""Which VM is to be made, and from what: the arguments of `vm_clone`, and of `after_clone` of `vm_gpu`."""

from __future__ import annotations

CLONE = {
    "vm": {"type": "str", "aliases": ["name"], "required": True},
    "template": {"type": "str", "required": True},
    "host": {"type": "str"},
    "folder": {"type": "str"},
    "datastore": {"type": "str"},
    "vcpus": {"type": "int"},
    "memory": {"type": "str"},
}
