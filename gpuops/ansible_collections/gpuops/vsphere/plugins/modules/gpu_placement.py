#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: gpu_placement
short_description: Say where VMs that do not exist yet would go
version_added: 0.1.0
description:
  - Finds a host, GPUs and a NUMA node for each request, one after another, each in the room that earlier ones leave.
    Nothing is ever written.
  - The task fails when a request has no place, and returns the places of the others all the same.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.connection
  - gpuops.vsphere.host_shell
attributes:
  check_mode:
    support: full
  diff_mode:
    support: N/A
  platform:
    platforms: all
options:
  requests:
    description:
      - The VMs to find a place for. Each says one of O(requests[].profile), O(requests[].profiles), O(requests[].gpus),
        O(requests[].device) and O(requests[].device_group).
    type: list
    elements: dict
    suboptions:
      name:
        description: What the result calls it.
        type: str
        required: true
      vcpu:
        description: vCPUs of the VM.
        type: int
        required: true
      memory:
        description: Memory of the VM with its unit, V(64GiB).
        type: str
        required: true
      profile:
        description: vGPU profile.
        type: str
      count:
        description: How many vGPUs of O(requests[].profile); one if it is left out.
        type: int
      profiles:
        description: vGPUs of several profiles of one GPU model, each C(profile) and C(count).
        type: list
        elements: dict
        suboptions:
          profile:
            description: vGPU profile.
            type: str
            required: true
          count:
            description: How many of it.
            type: int
            default: 1
      gpus:
        description: Whole GPUs of one model, by DirectPath I/O.
        type: int
      model:
        description: Model of the whole GPUs or other devices, V(l40s); any GPU if it is left out.
        type: str
      label:
        description: Hardware label that the whole GPUs or other devices must carry.
        type: str
      device:
        description: PCI addresses of given whole GPUs or other devices.
        type: list
        elements: str
      device_group:
        description: Vendor device group.
        type: str
      numa:
        description: How much CPU, memory and GPU must share a NUMA node; V(preferred) if it is left out.
        type: str
        choices: [required, preferred, none]
      cluster:
        description: Only hosts of this cluster.
        type: str
      host:
        description: Only hosts named so, a shell pattern.
        type: str
      tag:
        description: Only hosts that carry these vSphere tags, each V(CATEGORY:TAG).
        type: list
        elements: str
      affinity:
        description: Requests with the same word go to one host.
        type: str
      anti_affinity:
        description: Requests with the same word go to different hosts.
        type: str
      spread:
        description: Requests with the same word are spread over hosts as far as it goes.
        type: str
      priority:
        description: Higher ones are placed first; 0 if it is left out.
        type: int
      until:
        description: When the VM is gone again, with the offset from UTC, V(2026-11-03T05:00+01:00).
        type: str
  file:
    description:
      - A file of requests, YAML or CSV, in place of O(requests).
    type: path
  mig_layout:
    description:
      - C(FILE:NAME), a layout of a file of NVIDIA's mig-parted or vgpu-device-manager. The answer is as if GPUs had the
        GPU instances of this layout and no others - those of the hosts that O(requests[].host) names where all requests
        name the same, else of all hosts.
    type: str
  pin:
    description:
      - V(auto) - bind vGPUs to their GPUs where the order of power-on or V(numa=required) depends on it. Default
        V(auto).
    type: str
    choices: [auto, never]
  suspended:
    description:
      - V(claim) - the GPUs of suspended VMs are kept for their return. V(ignore) - they are free. Default V(claim).
    type: str
    choices: [claim, ignore]
  keep_free:
    description:
      - How many more vGPUs of a profile must still be able to start in a VM's cluster when it runs, each
        V(a100-3-20c=4). A place that leaves fewer is refused, unless it takes none of them away.
    type: list
    elements: str
  optimize:
    description:
      - All requests at once, by a solver; tells how much more is possible. Needs C(gpuops-vsphere[optimize]).
    type: bool
    default: false
  explain:
    description:
      - Show every host and GPU that was considered, and why it was chosen or not.
    type: bool
    default: false
seealso:
  - module: gpuops.vsphere.vm_gpu
"""

EXAMPLES = r"""
- name: Where would these go
  gpuops.vsphere.gpu_placement:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    requests:
      - {name: train-1, vcpu: 16, memory: 64GiB, profile: a100-3-20c, numa: required}
      - {name: train-2, vcpu: 8, memory: 64GiB, gpus: 1, model: l40s}
  register: places
  delegate_to: localhost

- name: The host of the first
  ansible.builtin.debug:
    msg: "{{ places.placement.requests[0].place.host.name }}"
"""

RETURN = r"""
placement:
  description:
    - Each request under C(requests), in the order of placing, with its C(place) or its C(rejections), the document of
      C(gpuops place --output json).
  returned: when an answer was found
  type: dict
reasons:
  description: Every reason why a request has no place, or why there is no answer.
  returned: always
  type: list
  elements: str
hint:
  description: The next move, where the error has one.
  returned: on failure
  type: str
exit_code:
  description: As of the command line, 3 when a request has no place.
  returned: on failure
  type: int
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

RULES = {"mutually_exclusive": [("requests", "file")], "required_one_of": [("requests", "file")]}

if __name__ == "__main__":
    main("gpu_placement", **RULES)
