#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_job_info
short_description: Show jobs in containers that nights run
version_added: 0.1.0
description:
  - Shows the jobs that were submitted, how each is, its place among those that wait, and when its VM is expected to
    start.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  name:
    description:
      - The jobs of this name, or the one of this number. One that is not there gives an empty list.
    type: str
  policy:
    description:
      - The policy file by which they are ordered. Without it, that of the last night.
    type: path
seealso:
  - module: gpuops.vsphere.gpu_job
"""

EXAMPLES = r"""
- name: What became of the jobs
  gpuops.vsphere.gpu_job_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
  delegate_to: localhost
  register: found

- name: Those that failed
  ansible.builtin.debug:
    msg: "{{ found.jobs | selectattr('state', 'equalto', 'failed') | map(attribute='name') }}"
"""

RETURN = r"""
jobs:
  description: Each job, as C(gpuops job list --output json) has them.
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
    main("gpu_job_info")
