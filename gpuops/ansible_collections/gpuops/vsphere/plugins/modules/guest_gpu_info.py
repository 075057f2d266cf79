#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: guest_gpu_info
short_description: Say whether guests are ready for work on their GPUs
version_added: 0.1.0
description:
  - Asks guests, Linux and Windows, for driver, licence, CUDA, frameworks, ECC, MIG, RDMA and clock. Each row passes,
    fails or is unknown, with the next move.
  - In each guest one program is run, which only reads, by VMware Tools as the user of E(GPUOPS_GUEST_USERNAME), or
    over SSH with the key of E(GPUOPS_GUEST_SSH_KEY).
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  vm:
    description:
      - This VM, or those with a GPU whose names fit a shell pattern such as V(ml-*).
    type: str
  pool:
    description:
      - The VMs of this pool of the O(policy).
    type: str
  policy:
    description:
      - File of the rotation policy that has the O(pool).
    type: path
  via:
    description:
      - How guests are asked.
    type: str
    choices: [tools, ssh]
    default: tools
  ssh_user:
    description:
      - With O(via=ssh), who enters them. V(root) where it is left out.
    type: str
  ssh_host:
    description:
      - Their address, in which V({vm}) stands for the VM's name, as in V({vm}.example.com). Default that name.
    type: str
  ssh_port:
    description:
      - Their port. 22 where it is left out.
    type: int
  framework:
    description:
      - Frameworks that python3 must have there, such as V(torch>=2.3).
    type: list
    elements: str
  expect:
    description:
      - What must be there, and is otherwise only looked at where it is.
    type: list
    elements: str
    choices: [toolkit, rdma]
seealso:
  - module: gpuops.vsphere.vm_gpu_info
"""

EXAMPLES = r"""
- name: Whether the guests of the ML VMs are ready
  gpuops.vsphere.guest_gpu_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    vm: ml-*
    framework: ["torch>=2.3"]
  register: found
  delegate_to: localhost

- name: Stop before work that would fail
  ansible.builtin.assert:
    that: found.guest_check.ready
"""

RETURN = r"""
guest_check:
  description:
    - C(ready), and C(guests) with their C(rows), the document of C(gpuops guest check --output json).
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

RULES = {
    "mutually_exclusive": [("vm", "pool")],
    "required_one_of": [("vm", "pool")],
    "required_by": {"pool": ["policy"]},
}

if __name__ == "__main__":
    main("guest_gpu_info", **RULES)
