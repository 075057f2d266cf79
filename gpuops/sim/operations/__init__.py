"""What wire methods do to the state, one file per kind of work: faults are vim faults, effects are recorded.

`vms`, `hosts`, `networks`, `guests` are what is done to these, `admission` where a VM may run; beside them stand
changes of the inventory and of clusters, and what all use: privileges, and the record of what was changed.
"""
