#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_capacity_info
short_description: Say how many more vGPUs and whole GPUs fit
version_added: 0.1.0
description:
  - Says for each vGPU profile and for whole GPUs how many more fit, by cluster, host and NUMA node; with O(policy) also
    when every desktop that it may take is suspended.
  - Each figure is for its profile alone, because profiles share the same GPUs. A range means that vCenter does not
    tell more; O(host_shell=ssh) asks the hosts.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
  - gpuops.vsphere.host_shell
options:
  profile:
    description:
      - Only this vGPU profile.
    type: str
  cluster:
    description:
      - Only this cluster.
    type: str
  host:
    description:
      - Only hosts named so, a shell pattern such as V(esx-0*).
    type: str
  policy:
    description:
      - File of a rotation policy.
    type: path
seealso:
  - module: gpuops.vsphere.gpu_placement
"""

EXAMPLES = r"""
- name: How many more fit, now and at night
  gpuops.vsphere.gpu_capacity_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    profile: a40-48c
    policy: /etc/gpuops/policy.yaml
  register: room
  delegate_to: localhost
"""

RETURN = r"""
capacity:
  description:
    - The figures of all, and C(clusters) with their C(hosts) and C(numa_nodes), the document of
      C(gpuops capacity --output json).
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
    main("gpu_capacity_info")
