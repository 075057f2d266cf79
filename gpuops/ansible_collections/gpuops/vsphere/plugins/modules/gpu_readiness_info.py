#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_readiness_info
short_description: Say whether hosts can be emptied, and whether one can be lost
version_added: 0.1.0
description:
  - Says of each host with GPUs whether every VM that must leave it has a place elsewhere, by which moves and with which
    stun by vCenter's own estimate, what blocks it, and which VMs would find no place if the host failed.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  cluster:
    description:
      - Only this cluster.
    type: str
  host:
    description:
      - Only hosts named so, a shell pattern such as V(esx-0*).
    type: str
seealso:
  - module: gpuops.vsphere.host_gpu_scheduler
"""

EXAMPLES = r"""
- name: Whether each host of a cluster can be emptied
  gpuops.vsphere.gpu_readiness_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    cluster: gpu-cluster
  register: found
  delegate_to: localhost

- name: Stop before an upgrade that would wait for ever
  ansible.builtin.assert:
    that: found.readiness.ready
"""

RETURN = r"""
readiness:
  description:
    - C(ready), and C(hosts) with C(leaving), C(blockers) and C(lost), the document of
      C(gpuops readiness --output json).
  returned: success
  type: dict
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

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

if __name__ == "__main__":
    main("gpu_readiness_info")
