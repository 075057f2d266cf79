# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  reboot:
    description:
      - V(rolling) - bring it into force. Each host is emptied, enters maintenance mode, is set, reboots, is looked at,
        and gets its VMs back, one after another; the change stops at the first that does not come back as it was set.
      - If it is left out, no host is rebooted, and RV(afterwards) says what is left to do.
    type: str
    choices: [rolling]
  max_hosts:
    description:
      - With O(reboot=rolling), how many hosts may be down at once. Default V(1).
    type: int
  window:
    description:
      - Hosts are set only while it is open, V(Sat 22:00-04:00 Europe/Berlin) or V(Mon-Fri 01:00-05:00 UTC); outside
        of it the task is refused, with nothing changed. With O(reboot=rolling) no host is begun once it has closed.
    type: str
  vms:
    description:
      - With O(reboot=rolling), what is done to the VMs that run on a host. V(move) - they leave by vMotion, and a host
        with one that cannot is refused. V(shut-down) - one that cannot is shut down by its guest and started again.
        V(power-off) - the same, and one whose guest still runs after five minutes is powered off. Default V(move).
    type: str
    choices: [move, shut-down, power-off]
  vsan_mode:
    description:
      - With O(reboot=rolling), what vSAN does with the data of a host. Default V(ensureObjectAccessibility).
    type: str
    choices: [ensureObjectAccessibility, evacuateAllData, noAction]
"""
