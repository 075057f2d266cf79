# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  vm:
    description:
      - Name or inventory path of the VM. A name that several VMs carry is an error that lists their paths.
    type: str
    aliases: [name]
  moid:
    description:
      - Managed object id of the VM, such as V(vm-42).
    type: str
  uuid:
    description:
      - Instance UUID of the VM.
    type: str
"""
