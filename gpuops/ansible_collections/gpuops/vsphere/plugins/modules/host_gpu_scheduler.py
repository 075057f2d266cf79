#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: host_gpu_scheduler
short_description: Set how the vGPUs of a GPU share its time
version_added: 0.1.0
description:
  - Sets the scheduler policy of GPUs in the options of their hosts' nvidia kernel module; every other option stays.
  - It is in force after the next reboot of each host, see O(reboot).
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.connection
  - gpuops.vsphere.rolling
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: all
options:
  scheduler:
    description:
      - How the GPU's time is divided among its VMs.
    type: str
    choices: [best-effort, equal-share, fixed-share]
    required: true
  time_slice:
    description:
      - Plain time slices, V(1ms) to V(30ms); V(default) for the length that the driver chooses.
    type: str
  frequency:
    description:
      - Adaptive round robin at 63 to 960 Hz (from vGPU 15 on). Example V(480Hz).
    type: str
  averaging:
    description:
      - Its averaging factor, 1 to 60; with O(frequency). Example V(33).
    type: int
  gpu:
    description:
      - Only these GPUs of each host, by PCI address. Default all that it concerns.
    type: list
    elements: str
    default: []
  driver_branch:
    description:
      - The branch of the hosts' driver, if vCenter does not report it. Example V(R550).
    type: str
  host:
    description:
      - Hosts whose name matches, V(esx-0*).
    type: str
  cluster:
    description:
      - The hosts of this cluster.
    type: str
seealso:
  - module: gpuops.vsphere.host_gpu_info
"""

EXAMPLES = r"""
- name: The same time for each running vGPU
  gpuops.vsphere.host_gpu_scheduler:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    scheduler: equal-share
    time_slice: 2ms
    host: esx-01.lab
  register: scheduler
  delegate_to: localhost

- name: What is left to do
  ansible.builtin.debug:
    var: scheduler.afterwards
"""

RETURN = r"""
because:
  description: Reasons worth a line even when all goes well, such as why there is nothing to do.
  returned: when a plan was made
  type: list
  elements: str
afterwards:
  description: What the admin still has to do, in order, before it is in force, such as a reboot of the host.
  returned: when a plan was made
  type: list
  elements: str
reasons:
  description: Every reason why something was not done, with its numbers. Empty when all was done.
  returned: always
  type: list
  elements: str
hint:
  description: The next move, where the error has one.
  returned: on failure
  type: str
exit_code:
  description: As of the command line. 2 usage, 3 refused and nothing changed, 4 partly done.
  returned: on failure
  type: int
plan:
  description: The plan and its outcomes, the document of C(gpuops host scheduler set --output json).
  returned: when a plan was made
  type: dict
diff:
  description: Each host before and after, GPU by GPU.
  returned: when a plan was made
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

RULES = {"required_one_of": [("host", "cluster")]}

if __name__ == "__main__":
    main("host_gpu_scheduler", **RULES)
