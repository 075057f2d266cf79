#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: vm_gpu_info
short_description: Read the GPU devices of VMs on vSphere
version_added: 0.1.0
description:
  - Reads the GPU devices of one VM, or of every VM that has some, and the settings that go with them.
  - With O(guest) it waits until the system inside the VM is up, after a first boot for example.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
  - gpuops.vsphere.vm
options:
  host:
    description:
      - Only VMs on this host.
    type: str
  profile:
    description:
      - Only VMs with this vGPU profile.
    type: str
  guest:
    description:
      - Waits for the guest of the one running VM. V(tools) - VMware Tools run in it. V(address) - it has an address.
    type: str
    choices: [tools, address]
  guest_timeout:
    description:
      - How many seconds O(guest) waits at most; the task fails after them.
    type: int
    default: 600
seealso:
  - module: gpuops.vsphere.vm_gpu
"""

EXAMPLES = r"""
- name: Which VMs have GPUs
  gpuops.vsphere.vm_gpu_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
  register: gpus
  delegate_to: localhost

- name: One VM
  gpuops.vsphere.vm_gpu_info:
    vm: ml-07

- name: The address of one VM, as soon as its guest has one
  gpuops.vsphere.vm_gpu_info:
    vm: ml-07
    guest: address
    guest_timeout: 300
  register: booted
"""

RETURN = r"""
vms:
  description: VMs by their paths. V(null) means unknown, never off, none or zero.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the VM.
      type: str
    moid:
      description: Managed object id.
      type: str
    path:
      description: Inventory path.
      type: str
    instance_uuid:
      description: Instance UUID.
      type: str
    host:
      description: Name of the host that the VM is registered on.
      type: str
    power:
      description: Power state, V(poweredOn), V(poweredOff) or V(suspended).
      type: str
    vcpus:
      description: Number of vCPUs.
      type: int
    memory_mib:
      description: Memory in MiB.
      type: int
    hardware_version:
      description: Virtual hardware version.
      type: int
    firmware:
      description: Firmware, V(efi) or V(bios).
      type: str
    devices:
      description: Every passthrough device in words.
      type: list
      elements: str
      sample: ["vGPU grid_a100-3-20c"]
    profiles:
      description: Profile of each vGPU.
      type: list
      elements: str
    memory_reserved_mib:
      description: Reserved memory in MiB.
      type: int
    all_memory_reserved:
      description: Whether the memory is locked to the reservation.
      type: bool
    cpu_hot_add:
      description: Whether vCPUs can be added to the running VM.
      type: bool
    cores_per_numa_node:
      description: vCPUs per virtual NUMA node; 0 leaves it to the host.
      type: int
    settings:
      description: Advanced settings that go with GPUs.
      type: dict
    attributes:
      description: Custom attributes that have a value.
      type: dict
guest:
  description: What the system in the VM reports. V(null) means that it reports nothing.
  returned: when O(guest) was asked for, also when the time was up
  type: dict
  contains:
    tools_running:
      description: Whether VMware Tools run in it.
      type: bool
    address:
      description: Its primary IP address.
      type: str
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

RULES = {"mutually_exclusive": [("vm", "moid", "uuid", "host"), ("vm", "moid", "uuid", "profile")]}

if __name__ == "__main__":
    main("vm_gpu_info", **RULES)
