"""Compares a fleet with the same fleet after assumed changes; `gpuops what-if` shows it.

* `hardware_changes.py`  hosts and GPUs that are added, lost or in another mode, and the VMs that must restart
* `changed_fleet.py`  all changes of a question on one snapshot: also VMs with another profile, and more VMs
* `demand.py`  the requests to both fleets: those of a file, recorded days, or made-up arrivals
* `question.py`  `WhatIf.answer`: both fleets, the same requests, the same night
* `comparing.py`  reads the vCenter, and asks

The changed fleet is an ordinary snapshot: requests are placed by `plan/queue`, VMs restart by `plan/hosts/readiness`,
nights are planned by `plan/rotation`, and none of them knows that the change is assumed.
"""
