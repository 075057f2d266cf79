#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: host_passthrough
short_description: Give GPUs and other PCI devices of hosts to VMs whole, or back to their hosts
version_added: 0.1.0
description:
  - Switches DirectPath I/O of GPUs on and off, and sets the hardware label by which VMs ask for them.
  - Where the host cannot do that at once it is in force after its next reboot, see O(reboot).
  - Switching it off is refused while a VM has the GPU.
  - On vCenter 9.1 the mode of each GPU is set by vCenter's own call, which says whether that takes maintenance mode or
    a reboot; this is not known before, so check mode cannot say it.
  - A NIC or a storage controller in the host's own use is never given away.
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
  state:
    description:
      - V(enabled) - VMs get the GPU whole, and vGPUs cannot run on it. V(disabled) - the host has it back.
    type: str
    choices: [enabled, disabled]
    default: enabled
  gpu:
    description:
      - PCI addresses of the GPUs, on each host. One of this and O(device) is needed.
    type: list
    elements: str
  device:
    description:
      - Another PCI device of each host - an AMD GPU, an FPGA, a NIC.
    type: list
    elements: str
  label:
    description:
      - Hardware label of the GPUs; empty removes it. Goes with O(state=enabled).
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
- name: A whole GPU for VMs that ask for its label
  gpuops.vsphere.host_passthrough:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    gpu: ["0000:af:00.0"]
    label: a40-ml
    host: esx-02.lab
  delegate_to: localhost

- name: An FPGA for VMs that ask for its label
  gpuops.vsphere.host_passthrough:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    device: ["0000:5e:00.0"]
    label: fpga
    host: esx-02.lab
  delegate_to: localhost

- name: Back to its host
  gpuops.vsphere.host_passthrough:
    state: disabled
    gpu: ["0000:af:00.0"]
    host: esx-02.lab
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
  description: The plan and its outcomes, the document of C(gpuops host passthrough on --output json).
  returned: when a plan was made
  type: dict
diff:
  description: Each host before and after, GPU by GPU.
  returned: when a plan was made
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

RULES = {"required_one_of": [("host", "cluster"), ("gpu", "device")]}

if __name__ == "__main__":
    main("host_passthrough", **RULES)
