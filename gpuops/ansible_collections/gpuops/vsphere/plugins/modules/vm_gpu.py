#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: vm_gpu
short_description: Give a VM on vSphere NVIDIA GPUs, or take them away
version_added: 0.1.0
description:
  - Gives a VM vGPUs (time-sliced or MIG-backed, several per VM), whole GPUs by DirectPath I/O or Dynamic DirectPath
    I/O, or a vendor device group, with all that must go with them, in one reconfiguration or not at all.
  - Taking the last GPU away puts back what giving it had changed.
  - It is the same plan as that of C(gpuops attach) and C(gpuops detach). Check mode is that plan, not done.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.connection
  - gpuops.vsphere.host_shell
  - gpuops.vsphere.vm
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
      - With O(state=present), how many in all, not how many more; one if it is left out.
      - With O(state=absent), how many stay; none if it is left out.
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
      - With O(state=absent), every GPU device. Other passthrough devices stay.
    type: bool
    default: false
  replace:
    description:
      - Remove these - a profile, a PCI address or V(dynamic).
    type: str
  add:
    description:
      - Other GPU devices of the VM stay beside the new ones. Without it, and without O(replace), they are a reason to
        refuse.
    type: bool
    default: false
  move:
    description:
      - V(cold) - the VM may be moved, powered off, to a host that has the GPU.
    type: str
    choices: [cold]
  pin:
    description:
      - V(auto) - bind a vGPU to one GPU where O(numa=required) depends on it. Default V(auto).
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
      - The host that the VM is to be on. Default its own, or with O(move) the best.
    type: str
  keep_free:
    description:
      - With O(state=present), how many more vGPUs of a profile must still be able to start in the VM's cluster when it
        runs, each V(a100-3-20c=4). A place that leaves fewer is refused, unless it takes none of them away.
    type: list
    elements: str
  after_clone:
    description:
      - What M(gpuops.vsphere.vm_clone) was asked for, its RV(gpuops.vsphere.vm_clone#module:clone). In check mode a VM
        that it has not made yet is planned for as it will be; otherwise this changes nothing.
      - What this login may do to a VM that is not there yet cannot be asked, and is not.
    type: dict
    suboptions:
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
  - module: gpuops.vsphere.vm_clone
  - module: gpuops.vsphere.vm_gpus
  - module: gpuops.vsphere.vm_gpu_info
  - module: gpuops.vsphere.gpu_placement
"""

EXAMPLES = r"""
- name: Give ml-07 a MIG-backed vGPU
  gpuops.vsphere.vm_gpu:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    vm: ml-07
    profile: a100-3-20c
  delegate_to: localhost

- name: Two vGPUs, beside the CPUs that use them, with a restart if the VM runs
  gpuops.vsphere.vm_gpu:
    vm: ml-08
    profile: a40-48c
    count: 2
    numa: required
    power: cycle

- name: A whole GPU by its address
  gpuops.vsphere.vm_gpu:
    vm: /lab-dc/vm/ml/ml-03
    device: ["0000:5e:00.0"]

- name: Any whole GPU that carries a label, on whatever host has one
  gpuops.vsphere.vm_gpu:
    moid: vm-42
    label: l40s-ml
    move: cold

- name: A vGPU where the hosts themselves tell how their vGPUs lie
  gpuops.vsphere.vm_gpu:
    vm: ml-09
    profile: a100-1-5c
    host_shell: ssh
    ssh_user: gpu-reader
    ssh_known_hosts: /etc/gpuops/known_hosts

- name: Take every GPU away
  gpuops.vsphere.vm_gpu:
    vm: ml-07
    state: absent
    all: true
"""

RETURN = r"""
vm:
  description: The VM afterwards, as M(gpuops.vsphere.vm_gpu_info) tells it; in check mode as it would be.
  returned: when the VM was found
  type: dict
  sample:
    name: ml-07
    moid: vm-42
    host: esx-01.lab
    power: poweredOff
    profiles: [grid_a100-3-20c]
because:
  description: Reasons worth a line even when all goes well, such as why there is nothing to do.
  returned: when a plan was made
  type: list
  elements: str
  sample: ["ml-07 has vgpu grid_a100-3-20c already"]
reasons:
  description: Every reason why something was not done, with its numbers. Empty when all was done.
  returned: always
  type: list
  elements: str
  sample: ["legacy: firmware for vgpu grid_a100-3-20c: needs EFI, BIOS there"]
hint:
  description: The next move.
  returned: when no plan could be made
  type: str
  sample: "gpuops inventory --vms shows the names this login can see"
exit_code:
  description:
    - As of the command line. 2 usage, 3 refused and nothing changed, 4 partly done, 5 vCenter not reached or login
      refused, 6 another run holds the lock, 7 state damaged.
  returned: on failure
  type: int
  sample: 3
plan:
  description: The plan and its outcomes, the document of C(gpuops attach --output json).
  returned: when a plan was made
  type: dict
diff:
  description: The VM before and after, the fields that differ.
  returned: when a plan was made
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

RULES = {"mutually_exclusive": [("vm", "moid", "uuid")], "required_one_of": [("vm", "moid", "uuid")]}

if __name__ == "__main__":
    main("vm_gpu", **RULES)
