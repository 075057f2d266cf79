#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_job
short_description: Submit jobs in containers for the night, or cancel one
version_added: 0.1.0
description:
  - Submits the jobs of a file. Each waits for a night, which runs its image in a VM with the vGPU that it asks for. A
    job that is there word for word, and has not ended, is left as it is.
  - V(cancelled) cancels a job. One that runs saves its state by its checkpoint command first.
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
      - Whether the jobs are to be submitted, or the job cancelled.
    type: str
    choices: [submitted, cancelled]
    default: submitted
  file:
    description:
      - The file of the jobs, on the machine that the module runs on. C(gpuops template show jobs.yaml) prints one.
      - Needed with O(state=submitted).
    type: path
  name:
    description:
      - With O(state=cancelled), the name of the job or of the array, or the number of the job.
    type: str
  policy:
    description:
      - The policy file whose mounts and quotas hold. Without it, those of the last night.
    type: path
seealso:
  - module: gpuops.vsphere.gpu_job_info
"""

EXAMPLES = r"""
- name: Tonight's jobs
  gpuops.vsphere.gpu_job:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    file: jobs.yaml
    policy: policy.yaml
  delegate_to: localhost

- name: One of them is not wanted any more
  gpuops.vsphere.gpu_job:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    name: fit-3
    state: cancelled
  delegate_to: localhost
"""

RETURN = r"""
jobs:
  description:
    - The jobs as they are then, as C(gpuops job show --output json) has each. In check mode a job that would be
      submitted has the number 0.
  returned: when they were looked for
  type: list
  elements: dict
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
  description: As of the command line. 2 usage, 3 refused and nothing changed, 4 a job that runs has not ended well.
  returned: on failure
  type: int
diff:
  description: Job by job what becomes of it.
  returned: when they were looked for
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

RULES = {
    "mutually_exclusive": [("file", "name")],
    "required_if": [("state", "submitted", ["file"]), ("state", "cancelled", ["name"])],
}

if __name__ == "__main__":
    main("gpu_job", **RULES)
