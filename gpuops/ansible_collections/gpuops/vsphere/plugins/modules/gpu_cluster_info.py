#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_cluster_info
short_description: Show clusters of VMs for training
version_added: 0.1.0
description:
  - Shows the VMs of each cluster by rank, with their hosts and addresses, and what is not as it was made.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  name:
    description:
      - The cluster of this name alone. One that is not there gives an empty list.
    type: str
seealso:
  - module: gpuops.vsphere.gpu_cluster
"""

EXAMPLES = r"""
- name: Where the cluster runs
  gpuops.vsphere.gpu_cluster_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    name: train
  delegate_to: localhost
  register: found

- name: Its addresses, by rank
  ansible.builtin.debug:
    msg: "{{ found.clusters[0].members | map(attribute='address') }}"
"""

RETURN = r"""
clusters:
  description: Each cluster, as C(gpuops cluster show --output json) has them.
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

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

if __name__ == "__main__":
    main("gpu_cluster_info")
