"""Counts how many more vGPUs and whole GPUs fit on a NUMA node, on a host, in a cluster and over all.

* `fleet_room.py`       the answer: a tree of places with the room in each, and the cores and memory of its NUMA nodes
* `host_room.py`        the room on one host, why it may start no VM, and how many vGPUs of a profile one VM may have
* `capacity_request.py` `capacity`: the whole tree, now and after a night's suspends

Every figure is for its profile alone: vGPUs of different profiles use the same GPUs, so figures do not add up over
profiles. Where vCenter does not tell enough the figure is a range, or has no upper end.
"""
