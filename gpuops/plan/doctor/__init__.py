"""What stands in the way of the verbs, per vCenter, cluster, host, GPU and VM, with what to do about it.

`gpuops doctor` calls `examination.py`; the role check of a file of roles calls `roles.py`,
and `gpuops login test` calls `verbs.py`.
"""
