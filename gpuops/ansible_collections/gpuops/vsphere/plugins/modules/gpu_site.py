#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_site
short_description: Keep hosts and VMs as a site file says
version_added: 0.1.0
description:
  - Compares a vCenter with a file of what hosts and VMs should be, and changes what differs. Hosts come first, then
    VMs. What the file does not name stays as it is.
  - If something of the file cannot be done, nothing is changed and every reason is returned. After an interruption run
    the same task again.
  - In check mode it shows what differs and how it would be changed.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.connection
  - gpuops.vsphere.host_shell
  - gpuops.vsphere.rolling
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: all
options:
  file:
    description:
      - The site file, or a directory of them, on the machine that the module runs on. C(gpuops template show site.yaml)
        prints one.
    type: path
  content:
    description:
      - The content of a site file, in place of O(file). Paths in it are relative to the working directory of the task.
    type: dict
seealso:
  - module: gpuops.vsphere.host_gpu_info
  - module: gpuops.vsphere.vm_gpu_info
"""

EXAMPLES = r"""
- name: Everything as the file in git says
  gpuops.vsphere.gpu_site:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    file: site.yaml
    reboot: rolling
    window: Sat 22:00-04:00 Europe/Berlin
  delegate_to: localhost

- name: One vGPU for each desktop
  gpuops.vsphere.gpu_site:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    content:
      version: 1
      vms:
        - vm: vdi-*
          devices:
            profile: a40-8q
  delegate_to: localhost
"""

RETURN = r"""
afterwards:
  description: What is left to do, in order, before everything is in force, such as a reboot of a host.
  returned: when a plan was made
  type: list
  elements: str
reasons:
  description: Every reason why something was not done. Empty when all was done.
  returned: always
  type: list
  elements: str
hint:
  description: The next step, where the error has one.
  returned: on failure
  type: str
exit_code:
  description: As of the command line. 2 usage, 3 refused and nothing changed, 4 partly done.
  returned: on failure
  type: int
plan:
  description: What differs, the plan and its outcomes, the document of C(gpuops apply --output json).
  returned: when a plan was made
  type: dict
diff:
  description: The settings that change, before and after, for each host, GPU and VM.
  returned: when a plan was made
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

RULES = {"mutually_exclusive": [("file", "content")], "required_one_of": [("file", "content")]}

if __name__ == "__main__":
    main("gpu_site", **RULES)
