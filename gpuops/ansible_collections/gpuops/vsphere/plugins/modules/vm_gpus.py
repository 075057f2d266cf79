#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: vm_gpus
short_description: Give many VMs on vSphere NVIDIA GPUs at once, or take them away
version_added: 0.1.0
description:
  - Does for many VMs what M(gpuops.vsphere.vm_gpu) does for one, by one login, one bulk read and one plan. A bounded
    number of vCenter's tasks is in flight, at most four on one host.
  - Each VM is planned on what the ones before it leave. Unless O(partial), nothing is done if one of them cannot be.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.connection
  - gpuops.vsphere.host_shell
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: all
options:
  partial:
    description:
      - The VMs that can be done are done, and the others are named; the task fails then, with exit code 4.
    type: bool
    default: false
  vms:
    description:
      - The VMs, each named once, by one of O(vms[].vm), O(vms[].moid) and O(vms[].uuid).
    type: list
    elements: dict
    required: true
    suboptions:
      vm:
        description:
          - Name or inventory path of the VM. A name that several VMs carry is a reason that lists their paths.
        type: str
        aliases: [name]
      moid:
        description:
          - Managed object id of the VM, such as V(vm-42).
        type: str
      uuid:
        description:
          - Instance UUID of the VM.
        type: str
      state:
        description:
          - V(present) - the VM has these devices. V(absent) - it does not.
        type: str
        choices: [present, absent]
        default: present
      profile:
        description:
          - vGPU profile, as people write it, V(a100-3-20c) or V(grid_a100-3-20c).
        type: str
      count:
        description:
          - With O(vms[].state=present), how many in all, not how many more; one if it is left out.
          - With O(vms[].state=absent), how many stay; none if it is left out.
        type: int
      device:
        description:
          - A whole GPU or other device, DirectPath I/O, V(0000:3b:00.0).
        type: list
        elements: str
        default: []
      dynamic:
        description:
          - Any whole device of a kind (Dynamic DirectPath I/O); by itself a GPU of NVIDIA.
        type: bool
        default: false
      label:
        description:
          - Hardware label of the dynamic device.
        type: str
      device_type:
        description:
          - Kinds of the dynamic device, vendor and device id, V(10de:20f1); of an AMD GPU V(1002:75a3).
        type: list
        elements: str
        default: []
      device_group:
        description:
          - Vendor device group, V(Nvidia:2@grid_a100d-80c%NVLink).
        type: str
      all:
        description:
          - With O(vms[].state=absent), every GPU device. Other passthrough devices stay.
        type: bool
        default: false
      replace:
        description:
          - Remove these - a profile, a PCI address or V(dynamic).
        type: str
      add:
        description:
          - Other GPU devices of the VM stay beside the new ones. Without it, and without O(vms[].replace), they are a
            reason to refuse.
        type: bool
        default: false
      move:
        description:
          - V(cold) - the VM may be moved, powered off, to a host that has the GPU.
        type: str
        choices: [cold]
      pin:
        description:
          - V(auto) - bind a vGPU to one GPU where O(vms[].numa=required) depends on it. Default V(auto).
        type: str
        choices: [auto, never]
      numa:
        description:
          - How much CPU, memory and GPU must share a NUMA node. Default V(preferred).
        type: str
        choices: [required, preferred, none]
      power:
        description:
          - What a change may do to a running VM. V(refuse) - nothing is changed. V(cycle) - it is stopped and started
            again. V("off") - it is stopped. V("on") - the VM runs afterwards, changed or not. Default V(refuse).
        type: str
        choices: [refuse, cycle, "off", "on"]
      host:
        description:
          - The host that the VM is to be on. Default its own, or with O(vms[].move) the best.
        type: str
      keep_free:
        description:
          - With O(vms[].state=present), how many more vGPUs of a profile must still be able to start in the VM's
            cluster when it runs, each V(a100-3-20c=4). A place that leaves fewer is refused, unless it takes none of
            them away.
        type: list
        elements: str
seealso:
  - module: gpuops.vsphere.vm_gpu
  - module: gpuops.vsphere.gpu_placement
"""

EXAMPLES = r"""
- name: Every VM of the group has the vGPU that its variables say, by one login
  gpuops.vsphere.vm_gpus:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    partial: true
    vms: "{{ ansible_play_hosts | map('extract', hostvars, 'gpu_wanted') }}"
  delegate_to: localhost
  run_once: true
  register: together

- name: Two VMs
  gpuops.vsphere.vm_gpus:
    vms:
      - {vm: ml-07, profile: a100-3-20c, power: "on"}
      - {vm: ml-02, state: absent, all: true}
"""

RETURN = r"""
vms:
  description: What became of each VM, in the order of O(vms).
  returned: when a plan was made
  type: list
  elements: dict
  contains:
    asked:
      description: The VM as the task names it; by managed object id V(moid:vm-42), by UUID V(uuid:...).
      type: str
    changed:
      description: Whether it was changed; in check mode whether it would be.
      type: bool
    failed:
      description: Whether something stands against it.
      type: bool
    because:
      description: Why there is nothing to do, and other reasons worth a line.
      type: list
      elements: str
    reasons:
      description: Every reason why something was not done.
      type: list
      elements: str
    vm:
      description: The VM afterwards, as M(gpuops.vsphere.vm_gpu_info) tells it; V(null) if there is none.
      type: dict
because:
  description: Reasons worth a line even when all goes well, such as why there is nothing to do.
  returned: when a plan was made
  type: list
  elements: str
reasons:
  description: Every reason why something was not done, with its numbers. Empty when all was done.
  returned: always
  type: list
  elements: str
hint:
  description: The next move.
  returned: when no plan could be made
  type: str
exit_code:
  description:
    - As of the command line. 2 usage, 3 refused and nothing changed, 4 partly done, 5 vCenter not reached or login
      refused, 6 another run holds the lock, 7 state damaged.
  returned: on failure
  type: int
plan:
  description: The plan and its outcomes, the document of C(gpuops attach --output json), for all of the VMs.
  returned: when a plan was made
  type: dict
diff:
  description: Each VM before and after, the fields that differ.
  returned: when a plan was made
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

if __name__ == "__main__":
    main("vm_gpus")
