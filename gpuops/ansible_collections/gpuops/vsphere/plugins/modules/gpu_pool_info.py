#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_pool_info
short_description: Show pools of GPUs that are lent over the network
version_added: 0.1.0
description:
  - Shows the servers of each pool, what of their GPUs is lent and idle, and its leases.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  pool:
    description:
      - The pool of this name alone.
    type: str
  ended:
    description:
      - So many leases that are over too, the last ones.
    type: int
    default: 0
seealso:
  - module: gpuops.vsphere.gpu_lease
"""

EXAMPLES = r"""
- name: What is idle
  gpuops.vsphere.gpu_pool_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    pool: lab
  delegate_to: localhost
  register: found

- name: The largest share that could be lent now, in MiB
  ansible.builtin.debug:
    msg: "{{ found.pools[0].largest_idle_mib }}"
"""

RETURN = r"""
pools:
  description: Each pool, as C(gpuops pool show --output json) has them.
  returned: success
  type: list
  elements: dict
reasons:
  description: Why it failed.
  returned: on failure
  type: list
  elements: str
hint:
  description: The next move, where the error has one.
  returned: on failure
  type: str
exit_code:
  description: As of the command line.
  returned: on failure
  type: int
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import connection, read


def ask(module):
    from gpuops.tasks.pools import gpu_pool_info

    return gpu_pool_info(connection(module), pool=module.params["pool"], ended=module.params["ended"])


def main():
    read(ask, {"pool": {"type": "str"}, "ended": {"type": "int", "default": 0}})


if __name__ == "__main__":
    main()
