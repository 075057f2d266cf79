"""`gpuops cluster` makes clusters of VMs with GPUs for training, and runs programs over all VMs of a cluster.

A cluster is made completely or not at all. A marker in each VM shows its cluster and rank, so no list is kept.

Read in this order:
`cluster_file`           the file of a cluster
`cluster_members`        finds VMs by their markers, and the reasons not to remove them (pure)
`one_vm`, `cluster_plan`, `answers`  checks and steps for one VM, the plan, and the outcomes of calls (pure)
`run`                    the run in the journal, and the lease that keeps others away
`creating`, `existing`   `cluster create`; `cluster show` and `delete`
`run_request`, `launch`  what to run, and how it is started on each VM (pure)
`cluster_guests`, `cluster_runs`  start a program in guests and wait; `cluster run` and `cluster bench`
`view`, `cli`, `tasks`  output, command line, Ansible

The core reaches it by `gpuops/extensions.py`: the command `cluster`, its documents and two Ansible modules.
"""
