#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: rotation_info
short_description: Read what the nights took, and the night to come
version_added: 0.1.0
description:
  - Says what the nights that are not over took, where each VM is now, and whether a run is under way or was cut off.
  - With O(plan) it also plans the night that would begin now, or O(at) a moment, on what vCenter shows now.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  policy:
    description:
      - File of the rotation policy. Default that of the last night in the journal.
    type: path
  plan:
    description:
      - Also plan the night.
    type: bool
    default: false
  at:
    description:
      - When that night begins, V(2026-11-23 22:00) in the zone of the policy, or V(22:00) for the next such moment.
        Implies O(plan).
    type: str
seealso:
  - module: gpuops.vsphere.rotation
"""

EXAMPLES = r"""
- name: Is everybody back
  gpuops.vsphere.rotation_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
  register: found
  delegate_to: localhost

- name: Say so
  ansible.builtin.assert:
    that: found.rotation.away == 0

- name: What would tonight be
  gpuops.vsphere.rotation_info:
    policy: /etc/gpuops/policy.yaml
    at: "2026-11-23 22:00"
"""

RETURN = r"""
rotation:
  description: What is open, VM by VM with the command that closes it, the document of C(gpuops rotate status).
  returned: when vCenter was read, also where the journal is damaged
  type: dict
  contains:
    away:
      description: How many VMs are not as they were before the night.
      type: int
    cut_off:
      description: The run that began and did not end, V(null) if none was cut off.
      type: str
    vms:
      description: Every VM of a night that is not over.
      type: list
      elements: dict
night:
  description: The night to come, the document of C(gpuops rotate plan); V(null) if it was not asked for.
  returned: when vCenter was read
  type: dict
reasons:
  description: Why it failed. Empty when everything could be read.
  returned: always
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
    main("rotation_info")
