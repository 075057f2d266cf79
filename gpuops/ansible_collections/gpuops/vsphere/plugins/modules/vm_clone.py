#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: vm_clone
short_description: Make a VM from a template, to give it GPUs next
version_added: 0.1.0
description:
  - Makes a VM from a template, powered off, if there is none of its name yet. One that is there is left as it is,
    whatever it was made from.
  - What a GPU needs of a new VM can be said, its host and its size. Networks, disks and the guest's settings are
    those of the template; for more there are the modules of C(vmware.vmware) and C(community.vmware).
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
  vm:
    description:
      - Name of the VM.
    type: str
    aliases: [name]
    required: true
  template:
    description:
      - Name or inventory path of the template.
    type: str
    required: true
  host:
    description:
      - The host that it is to be on, as M(gpuops.vsphere.gpu_placement) finds one. Default that of the template.
    type: str
  folder:
    description:
      - Inventory path of its folder, V(/lab-dc/vm/ml). Default that of the template.
    type: str
  datastore:
    description:
      - Name of a datastore of its host. Default that of the template.
    type: str
  vcpus:
    description:
      - Its vCPUs. Default those of the template.
    type: int
  memory:
    description:
      - Its memory with the unit, V(64GiB). Default that of the template.
    type: str
seealso:
  - module: gpuops.vsphere.gpu_placement
  - module: gpuops.vsphere.vm_gpu
"""

EXAMPLES = r"""
- name: A VM like the template, larger, in the folder of its kind
  gpuops.vsphere.vm_clone:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    vm: ml-10
    template: ubuntu-ml
    host: esx-01.example.com
    folder: /dc-1/vm/ml
    vcpus: 16
    memory: 128GiB
  delegate_to: localhost
  register: cloned

- name: Its GPU, in check mode too, when there is no such VM yet
  gpuops.vsphere.vm_gpu:
    vm: "{{ cloned.vm.path }}"
    profile: a100-3-20c
    power: "on"
    after_clone: "{{ cloned.clone }}"
"""

RETURN = r"""
vm:
  description:
    - The VM, as M(gpuops.vsphere.vm_gpu_info) tells it. In check mode as it will be, without what vCenter alone can
      give it, its C(moid) and C(instance_uuid). V(null) where it is refused.
  returned: when vCenter was read
  type: dict
there:
  description: Whether it was there already.
  returned: when vCenter was read
  type: bool
clone:
  description: What was asked for, as O(gpuops.vsphere.vm_gpu#module:after_clone) takes it.
  returned: when vCenter was read
  type: dict
because:
  description: Why there is nothing to do.
  returned: when vCenter was read
  type: list
  elements: str
reasons:
  description: Every reason why it was not made. Empty when it was, or need not be.
  returned: always
  type: list
  elements: str
hint:
  description: The next move, where the error has one.
  returned: on failure
  type: str
exit_code:
  description: As of the command line. 2 usage, 3 refused and nothing changed, 4 the outcome is not known.
  returned: on failure
  type: int
diff:
  description: What is known of the VM before it is made.
  returned: when vCenter was read
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

if __name__ == "__main__":
    main("vm_clone")
