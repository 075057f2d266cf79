#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: rotation
short_description: Desktops by day, ML VMs by night
version_added: 0.1.0
description:
  - Suspends the idle desktops that a policy selects and starts ML VMs on the freed GPUs, and brings every desktop back.
  - Everything is written to a journal before it is done, so that a run that was killed is finished by O(state=resumed).
  - It is the same plan as that of C(gpuops rotate). Check mode is that plan, not done.
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
  state:
    description:
      - V(night) - idle desktops are suspended, ML VMs run.
      - V(day) - the ML VMs that the night started are stopped, every desktop that it suspended is back. Safe at any
        time.
      - V(resumed) - a night or a morning that was cut off is finished.
      - V(restored) - what the nights took is brought back now, all of it, or O(vms) alone.
      - V(status) - nothing is done; RV(rotation) tells where everything is, as M(gpuops.vsphere.rotation_info) does.
    type: str
    choices: [night, day, resumed, restored, status]
    required: true
  policy:
    description:
      - File of the rotation policy. Needed with O(state=night). What the journal knows is returned under the policy of
        its night; otherwise this file, or the policy of the last night in the journal, speaks for marked VMs.
    type: path
  vms:
    description:
      - With O(state=restored), only these VMs; an ML VM that is not named keeps running.
    type: list
    elements: str
    default: []
  from_markers:
    description:
      - With O(state=restored), go by the markers in vCenter and by no journal. Needs O(policy).
    type: bool
    default: false
  by_timer:
    description:
      - With O(state=night) and O(state=day), a timer calls - outside the hours of this half there is nothing to do.
    type: bool
    default: false
notes:
  - A run over a connection whose certificate is not verified is refused, unless the task itself or the target says so.
seealso:
  - module: gpuops.vsphere.rotation_info
"""

EXAMPLES = r"""
- name: The night
  gpuops.vsphere.rotation:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    state: night
    policy: /etc/gpuops/policy.yaml
  delegate_to: localhost

- name: The morning
  gpuops.vsphere.rotation:
    state: day

- name: Somebody needs a desktop now
  gpuops.vsphere.rotation:
    state: restored
    vms: [vdi-07]

- name: Is everybody back
  gpuops.vsphere.rotation:
    state: status
  register: found
  failed_when: found is failed or found.rotation.away > 0
"""

RETURN = r"""
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
  description: The next move, where the error has one.
  returned: on failure
  type: str
exit_code:
  description:
    - As of the command line. 3 refused and nothing changed, 4 partly done with each desktop named that is not back, 6
      another run holds the lock, 7 state damaged.
  returned: on failure
  type: int
plan:
  description: The plan and its outcomes, with a reason for each VM, the document of C(gpuops rotate --output json).
  returned: when a plan was made
  type: dict
rotation:
  description: What is open, VM by VM with the command that closes it, the document of C(gpuops rotate status).
  returned: with O(state=status)
  type: dict
diff:
  description: Each VM before and after, the fields that differ.
  returned: when a plan was made
  type: list
  elements: dict
"""

from ansible_collections.gpuops.vsphere.plugins.module_utils.door import main

RULES = {"required_if": [("state", "night", ("policy",)), ("from_markers", True, ("policy",))]}

if __name__ == "__main__":
    main("rotation", **RULES)
