# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  host_shell:
    description:
      - V(ssh) - the hosts' own nvidia-smi is asked where vGPUs lie on GPUs in MIG or mixed-size mode, which vCenter
        does not tell, and how healthy GPUs are; room is then exact, and GPUs that are lost or require a reset do not
        count. A host that does not answer is warned about, and stays as vCenter tells it.
      - V(none) - no host is entered. Default V(none).
      - It needs C(gpuops-vsphere[ssh]), keys that the hosts accept, and their own keys; there are no passwords.
    type: str
    choices: [none, ssh]
  ssh_user:
    description:
      - With O(host_shell=ssh), who enters a host. Default V(root).
    type: str
  ssh_known_hosts:
    description:
      - With O(host_shell=ssh), the file of the hosts' SSH keys, by their names in vCenter; no other is trusted. Default
        C(~/.ssh/known_hosts).
    type: path
  ssh_key:
    description:
      - With O(host_shell=ssh), the file of the key to enter with, without a passphrase. Default those of the agent and
        of C(~/.ssh).
    type: path
  ssh_port:
    description:
      - With O(host_shell=ssh), the port of the hosts' SSH. Default V(22).
    type: int
"""
