"""Compares a fleet with the same fleet after assumed changes; `gpuops what-if` shows it.

* `gpu_models.py`   which GPU model is meant, and which vGPU profiles a GPU offers in a mode
* `new_hosts.py`    hosts that are added, made as one that is there
* `hardware.py`     hosts and GPUs that are added, lost or in another mode, and the VMs that have to start anew
* `layouts.py`      GPUs that have the GPU instances of a named layout
* `vms.py`          VMs with another profile, and more VMs
* `fleet.py`        `changed_fleet`: all changes of a question on one snapshot
* `demand.py`       what is asked of both fleets: requests of a file, recorded days, or made-up arrivals
* `question.py`     `WhatIf.answer`: both fleets, the same requests, the same night

A changed snapshot is a snapshot: requests are placed by `plan/queue`, VMs restart by `plan/hosts/readiness`, nights are
planned by `plan/rotation`, and none of them knows that the change is assumed.
"""
