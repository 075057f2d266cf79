#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_sizing_info
short_description: Say how many VMs may share a GPU before they are slowed down too much
version_added: 0.1.0
description:
  - Says how much longer VMs take that share a GPU, with how many of them and under which vGPU scheduler, and with
    O(at_most) how many there may be.
  - By what C(gpuops observe) has measured of VMs, on this machine and in the same state directory; by a file of
    O(workloads), or by plain numbers (O(busy)). The last two ask no vCenter.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  profile:
    description:
      - The VMs of this vGPU profile, and as many as a GPU holds of it.
    type: str
  vm:
    description:
      - VMs named so, a shell pattern such as V(ml-*).
    type: str
  tag:
    description:
      - VMs with this tag, V(CATEGORY:NAME).
    type: str
  policy:
    description:
      - File of a rotation policy; the VMs of its pools are meant.
    type: path
  pool:
    description:
      - Only those of this pool of O(policy).
    type: str
  since:
    description:
      - By history since then, V(7d), V(2w) or V(2026-11-20); 14 days when left out.
    type: str
  workloads:
    description:
      - File of workloads, and of pairs of them that shared a GPU.
    type: path
  busy:
    description:
      - VMs that are all alike, each of which keeps a GPU busy so much of the time alone, V(0.7) or V(70%).
    type: str
  overlap:
    description:
      - With O(busy), each VM is beside the next for this share of its work.
    type: str
  sharers:
    description:
      - With so many VMs on a GPU; by default several counts.
    type: int
  at_most:
    description:
      - Recommend the most VMs of which none takes longer than so many times as alone.
    type: float
  guaranteed:
    description:
      - What O(at_most) allows must hold whatever the other VMs do, so that best effort is not recommended.
    type: bool
    default: false
seealso:
  - module: gpuops.vsphere.gpu_diagnosis_info
  - module: gpuops.vsphere.host_gpu_scheduler
"""

EXAMPLES = r"""
- name: How many desktops may share a GPU, by what was measured of them
  gpuops.vsphere.gpu_sizing_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    vm: vdi-*
    at_most: 1.2
  register: shared
  delegate_to: localhost

- name: The same by plain numbers
  gpuops.vsphere.gpu_sizing_info:
    busy: 20%
    profile: a40-8q
    at_most: 1.5
  delegate_to: localhost
"""

RETURN = r"""
sizing:
  description: Counts, schedulers, what is recommended and how sure it is, the document of C(gpuops size --output json).
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
    main("gpu_sizing_info")
