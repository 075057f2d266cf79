"""`gpuops cluster` makes clusters of VMs with GPUs for training, and runs programs over all VMs of a cluster.

A cluster is made completely or not at all. A marker in each VM shows its cluster and rank, so no list is kept.

Read in this order:
`cluster_file`           the file of a cluster
`members`                finds VMs by their markers, and the reasons not to remove them (pure)
`prerequisites`, `one_vm`, `plan`, `answers`  checks, the steps for one VM, the plan, and the answers (pure)
`run`                    the run in the journal, and the lease that keeps others away
`creating`, `removing`, `showing`  `cluster create`, `delete` and `show`
`cluster_run`, `all_reduce`, `launch`  what to run, and how it is started on each VM (pure)
`guests`, `running`, `cluster_runs`  start a program in guests and wait; `cluster run` and `cluster bench`
`view`, `run_view`, `cli`, `tasks`  output, command line, Ansible

The core reaches it by `gpuops/extensions.py`: the command `cluster`, its documents and two Ansible modules.
"""
