#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: host_gpu_info
short_description: Read the GPUs of ESXi hosts, who holds them and what is free
version_added: 0.1.0
description:
  - Reads hosts that have GPUs, with their NUMA nodes, GPUs, vGPU profiles, the VMs on each GPU, and what still fits.
  - With O(host_shell=ssh) also the health of each GPU, as the nvidia-smi of its host reports it.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
  - gpuops.vsphere.host_shell
options:
  host:
    description:
      - Only this host.
    type: str
  profile:
    description:
      - Only hosts that offer this vGPU profile, and its figures.
    type: str
seealso:
  - module: gpuops.vsphere.gpu_capacity_info
"""

EXAMPLES = r"""
- name: What is there
  gpuops.vsphere.host_gpu_info:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
  register: fleet
  delegate_to: localhost

- name: Hosts with a free slot for a profile
  ansible.builtin.debug:
    msg: "{{ item.name }}"
  loop: "{{ fleet.hosts }}"
  loop_control:
    label: "{{ item.name }}"
  when: item.profiles | selectattr('name', 'eq', 'grid_a100-3-20c') | selectattr('free.at_least', 'gt', 0) | length > 0
"""

RETURN = r"""
vcenter:
  description: Instance UUID of the vCenter.
  returned: success
  type: str
api_version:
  description: Version of its API.
  returned: success
  type: str
hosts_without_gpus:
  description: How many hosts have no GPU.
  returned: success
  type: int
hosts:
  description: Hosts with GPUs, or that give VMs other devices. V(null) means unknown, never off, free or zero.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the host.
      type: str
    ref:
      description: Managed object id.
      type: str
    cluster:
      description: Name of its cluster.
      type: str
    connected:
      description: Whether vCenter reaches it. One that is not reached is listed with what is known.
      type: bool
    numa_nodes:
      description: NUMA nodes, each with its C(gpus), and each of these with C(holders), C(free) and C(health).
      type: list
      elements: dict
    other_devices:
      description: Devices that are no NVIDIA GPU, each with C(device_kind), C(mode) and C(holders).
      type: list
      elements: dict
    profiles:
      description: vGPU profiles that it offers, each with C(free).
      type: list
      elements: dict
    vms_not_on_a_gpu:
      description: VMs registered here that have a GPU device and hold no GPU now.
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
    main("host_gpu_info")
