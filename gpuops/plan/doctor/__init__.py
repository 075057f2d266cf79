"""What stands in the way of the verbs, per vCenter, cluster, host, GPU and VM, with what to do about it.

`gpuops doctor` calls `examination.py`; the check of a file of roles and
`gpuops login test` call `login_privileges.py`.
"""
