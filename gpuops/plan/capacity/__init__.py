"""Counts how many more vGPUs and whole GPUs fit on a NUMA node, on a host, in a cluster and over all.

* `fleet_room.py`       a tree of places with the room in each, and the room on one host that it is built from
* `capacity_request.py` `capacity`: the whole tree, now and after a night's suspends

Every figure is for its profile alone: vGPUs of different profiles use the same GPUs, so figures do not add up over
profiles. If vCenter does not show enough, a figure is a range or has no upper end.
"""
