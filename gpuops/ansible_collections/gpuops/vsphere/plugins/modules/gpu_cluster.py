#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_cluster
short_description: Make a cluster of VMs for training, or remove it
version_added: 0.1.0
description:
  - Makes the VMs of a cluster from a template, each with its GPUs and an RDMA network card, all of them or none. A
    cluster that is there whole is left as it is.
  - V(absent) removes the VMs of the cluster with their disks, and no other VM.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.connection
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: all
options:
  state:
    description:
      - Whether the cluster is to be there.
    type: str
    choices: [present, absent]
    default: present
  file:
    description:
      - The file of the cluster, on the machine that the module runs on.
      - C(gpuops template show cluster.yaml) prints one.
      - Needed with O(state=present).
    type: path
  name:
    description:
      - With O(state=absent), the name of the cluster, in place of its file.
    type: str
  resume:
    description:
      - Where something fails, keep what was made, so that the same again goes on. Otherwise all of it is removed.
    type: bool
    default: false
seealso:
  - module: gpuops.vsphere.gpu_cluster_info
"""

EXAMPLES = r"""
- name: A cluster for the night's training
  gpuops.vsphere.gpu_cluster:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    file: cluster.yaml
  delegate_to: localhost

- name: It goes when the work is done
  gpuops.vsphere.gpu_cluster:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    name: train
    state: absent
  delegate_to: localhost
"""

RETURN = r"""
cluster:
  description:
    - What is planned and became of it, the document of C(gpuops cluster create --output json) or of
      C(gpuops cluster delete --output json).
  returned: when vCenter was read
  type: dict
reasons:
  description: Every reason why it was not done, or not whole. Empty when it was, or need not be.
  returned: always
  type: list
  elements: str
hint:
  description: The next move, where the error has one.
  returned: on failure
  type: str
exit_code:
  description: As of the command line. 2 usage, 3 refused and nothing changed, 4 it failed on its way.
  returned: on failure
  type: int
diff:
  description: VM by VM what is made of it.
  returned: when vCenter was read
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

RULES = {
    "mutually_exclusive": [("file", "name")],
    "required_one_of": [("file", "name")],
    "required_if": [("state", "present", ["file"])],
}

if __name__ == "__main__":
    main("gpu_cluster", **RULES)
