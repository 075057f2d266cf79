#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_diagnosis_info
short_description: Say which component slows VMs with a vGPU down
version_added: 0.1.0
description:
  - Says of each VM which components are probably at fault (a noisy neighbour, the scheduler, the licence, CPU ready,
    the datastore and others), how probable that is, by which numbers, and what to do next.
  - By what C(gpuops observe) has measured, on this machine and in the same state directory, and the model that
    C(gpuops diagnose train) made there, or the one that comes with gpuops. It names the components that cannot be
    judged, and what is needed for that. A VM without measurements is left out; if no VM has any, the task fails.
  - Nothing changes in vCenter. Each diagnosis is kept in the state directory, in check mode too, so that
    C(gpuops diagnose confirm) or C(gpuops diagnose correct) can name it.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  vm:
    description:
      - Only VMs named so, a shell pattern such as V(ml-*), or C(moid:) and a managed object id.
      - Each running VM with a vGPU when left out.
    type: str
  host:
    description:
      - Only VMs on this host.
    type: str
  since:
    description:
      - By history since then, V(2d) or V(2026-11-20); 24 hours when left out.
    type: str
seealso:
  - module: gpuops.vsphere.gpu_sizing_info
  - module: gpuops.vsphere.guest_gpu_info
"""

EXAMPLES = r"""
- name: Why these VMs are slow
  gpuops.vsphere.gpu_diagnosis_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    vm: ml-*
  register: slow
  delegate_to: localhost

- name: What is most probably at fault, and what to do next
  ansible.builtin.debug:
    msg: "{{ item.vm }}: {{ item.suspects[0].component }}; {{ item.suspects[0].next }}"
  loop: "{{ slow.diagnosis.vms | selectattr('suspects') }}"
"""

RETURN = r"""
diagnosis:
  description: Each VM with its suspects, the document of C(gpuops diagnose --output json).
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
    main("gpu_diagnosis_info")
