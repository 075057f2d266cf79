#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: host_graphics_mode
short_description: Set what hosts use their GPUs for
version_added: 0.1.0
description:
  - Sets graphics types, vGPU modes and the assignment policy of hosts, in one change per host. What is left out stays.
  - A graphics type is in force after the host's next reboot, see O(reboot); the rest at once.
  - On vCenter 9.1 a vGPU mode is set by vCenter's own call, which says whether that takes maintenance mode or a reboot;
    this is not known before, so check mode cannot say it.
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
  default_type:
    description:
      - The graphics type of GPUs without their own setting.
    type: str
    choices: [shared, sharedDirect]
  type:
    description:
      - How GPUs serve VMs - V(sharedDirect) is vGPU.
    type: str
    choices: [shared, sharedDirect]
  vgpu_mode:
    description:
      - Whether vGPUs of several sizes may share a GPU (vSphere 8.0 Update 3).
    type: str
    choices: [sameSize, mixedSize]
  assignment:
    description:
      - Which GPU the host gives the next vGPU, the emptiest with V(performance), the fullest with V(consolidation).
    type: str
    choices: [performance, consolidation]
  gpu:
    description:
      - Only these GPUs of each host, by PCI address. Default all that it concerns.
    type: list
    elements: str
    default: []
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
- name: One size of vGPU on this GPU
  gpuops.vsphere.host_graphics_mode:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    vgpu_mode: sameSize
    gpu: ["0000:af:00.0"]
    host: esx-02.lab
  delegate_to: localhost
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
  description: The plan and its outcomes, the document of C(gpuops host mode set --output json).
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
    main("host_graphics_mode", **RULES)
