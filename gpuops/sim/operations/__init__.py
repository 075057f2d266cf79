"""What wire methods do to the state, one file per kind of work: faults are vim faults, effects are recorded.

`vms` is what is done to one VM. The other files are changes of hosts, clusters, switches and the inventory, where a VM
may run, guest operations, and what all use: privileges, and the record of what was changed.
"""
