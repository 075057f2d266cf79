#!/usr/bin/python
# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_lease
short_description: Lend a VM shares of GPUs over the network, or take them back
version_added: 0.1.0
description:
  - Lends a VM without a GPU a part of the memory of one GPU of a pool, or of several, until a moment. Where there is no
    room it waits, and O(state=present) does well all the same. A VM that has that lease already is left as it is.
  - V(absent) gives back what the VM has, or waits for, and cuts it off.
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
  client:
    description:
      - The VM.
    type: str
    required: true
  state:
    description:
      - Whether it is to have the lease.
    type: str
    choices: [present, absent]
    default: present
  memory:
    description:
      - Of each GPU, such as V(8GiB). Needed with O(state=present).
    type: str
  lasts:
    description:
      - How long, such as V(4h), V(90m) or V(1d). Needed with O(state=present).
    type: str
  gpus:
    description:
      - Of so many different GPUs.
    type: int
    default: 1
  within:
    description:
      - Refuse it where it would begin later than that, such as V(1h); V(0) is now or not at all. Without it, it waits.
    type: str
  pool:
    description:
      - The pool; without it, the only one there is.
    type: str
seealso:
  - module: gpuops.vsphere.gpu_pool_info
"""

EXAMPLES = r"""
- name: A share of a GPU for four hours
  gpuops.vsphere.gpu_lease:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    client: ml-07
    memory: 8GiB
    lasts: 4h
  delegate_to: localhost

- name: It is given back
  gpuops.vsphere.gpu_lease:
    hostname: vc.example.com
    username: gpuops@vsphere.local
    password: "{{ vcenter_password }}"
    client: ml-07
    state: absent
  delegate_to: localhost
"""

RETURN = r"""
lease:
  description:
    - The lease as C(gpuops pool show --output json) has it; its C(state) may be C(waiting), with C(begins_at).
    - None with O(state=absent).
  returned: when vCenter was read
  type: dict
answer:
  description:
    - What became of it, the document of C(gpuops pool lend --output json) or C(gpuops pool return --output json).
  returned: when vCenter was read
  type: dict
reasons:
  description: Every reason why it was not done, or not whole. Empty when it was, or need not be.
  returned: always
  type: list
  elements: str
hint:
  description: The next move, where the error has one.
  returned: on failure
  type: str
exit_code:
  description: As of the command line. 2 usage, 3 refused and nothing changed, 4 a guest could not be set up.
  returned: on failure
  type: int
diff:
  description: Leases of the VM before and after.
  returned: when vCenter was read
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.vsphere.plugins.module_utils.door import CONNECTION, connection, finish

OPTIONS = {
    "client": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "memory": {"type": "str"},
    "lasts": {"type": "str"},
    "gpus": {"type": "int", "default": 1},
    "within": {"type": "str"},
    "pool": {"type": "str"},
}


def ask(module):
    from gpuops.tasks.pools import gpu_lease

    return gpu_lease(
        connection(module),
        present=module.params["state"] == "present",
        **{name: module.params[name] for name in OPTIONS if name != "state"},
        apply=not module.check_mode,
    )


def main():
    module = AnsibleModule(
        argument_spec={**CONNECTION, **OPTIONS},
        mutually_exclusive=[("password", "password_file")],
        required_if=[("state", "present", ["memory", "lasts"])],
        supports_check_mode=True,
    )
    finish(module, ask)


if __name__ == "__main__":
    main()
