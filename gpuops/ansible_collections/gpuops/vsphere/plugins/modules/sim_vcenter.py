#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: sim_vcenter
short_description: Keep a simulated vCenter with GPUs running, to try playbooks on
version_added: 0.1.0
description:
  - Starts a vCenter on this machine whose GPUs refuse what real ones refuse, as a process of its own that outlives the
    playbook, or stops it. It listens on loopback, over TLS.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: posix
requirements:
  - gpuops-vsphere
options:
  state:
    description:
      - V(started) - it runs. One that runs already is left as it is. V(stopped) - it does not.
    type: str
    choices: [started, stopped]
    default: started
  ready_file:
    description:
      - How it is reached is written there, readable by its owner alone. It is there as long as the vCenter runs. What
        it says when it fails is in a file beside it, whose name ends in C(.log).
    type: path
    required: true
  scenario:
    description:
      - What it simulates, V(lab), V(vdi), V(scattered), V(fleet), or a YAML file.
    type: str
    default: lab
  state_file:
    description:
      - Begin with this state if the file is there, and keep it there when it is stopped.
    type: path
  port:
    description:
      - The port to listen on; V(0) is any free one.
    type: int
    default: 0
  clock:
    description:
      - What moves its time. V(virtual) is real seconds and clients that wait for a task or poll it, V(real) is real
        seconds alone, V(stepped) is requests and waits alone.
      - Without it E(GPUOPS_SIM_CLOCK) says it, else it is V(virtual).
    type: str
    choices: [virtual, real, stepped]
  seed:
    description:
      - Every choice it makes comes from this number.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: A vCenter to try it on
  gpuops.vsphere.sim_vcenter:
    ready_file: /tmp/lab/ready.json
    scenario: lab
  register: lab

- name: Give a VM a GPU there
  gpuops.vsphere.vm_gpu:
    hostname: "{{ lab.hostname }}"
    vm: ml-07
    profile: a100-3-20c

- name: Enough
  gpuops.vsphere.sim_vcenter:
    ready_file: /tmp/lab/ready.json
    state: stopped
"""

RETURN = r"""
hostname:
  description: What the other modules take as their O(gpuops.vsphere.vm_gpu#module:hostname).
  returned: success and with O(state=started)
  type: str
  sample: sim@/tmp/lab/ready.json
url:
  description: Address of its SDK.
  returned: success and while it runs
  type: str
  sample: https://127.0.0.1:41234/sdk
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
    main("sim_vcenter")
