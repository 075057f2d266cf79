"""Problems of a vCenter, its clusters, hosts, GPUs and VMs, each with what to do about it.

`gpuops doctor` calls `examination.py`; `gpuops login test` and the check of a file of roles call `login_privileges.py`.
"""
