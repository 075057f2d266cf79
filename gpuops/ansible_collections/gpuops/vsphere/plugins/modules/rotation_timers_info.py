#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: rotation_timers_info
short_description: Say when systemd or cron has to call the night and the return
version_added: 0.1.0
description:
  - Reads the windows of a policy, and says when systemd or cron has to call the night and the return, in their zones.
  - It is the document of C(gpuops rotate timers --output json). Asks no vCenter, and installs nothing.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - gpuops.vsphere.read_only
  - gpuops.vsphere.connection
options:
  policy:
    description:
      - File of the rotation policy.
    type: path
    required: true
  cron_tz:
    description:
      - Whether the lines are for a cron that reads C(CRON_TZ), as cronie does; otherwise they are in the hours of this
        machine's zone. As this machine's cron when left out.
    type: bool
seealso:
  - module: gpuops.vsphere.rotation
"""

EXAMPLES = r"""
- name: When the timers call
  gpuops.vsphere.rotation_timers_info:
    policy: /etc/gpuops/policy.yaml
  register: calls
  delegate_to: localhost
"""

RETURN = r"""
timers:
  description: The calls of both halves, the document of C(gpuops rotate timers --output json).
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
    main("rotation_timers_info")
