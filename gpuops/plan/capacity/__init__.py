"""Capacity: how many more vGPUs and whole GPUs fit: on a NUMA node, a host, in a cluster, over all.

* `place.py`     what is answered: a tree of places with the room in each
* `host.py`      the room on one host, NUMA node by NUMA node
* `bars.py`      why a host starts no VM at all
* `beside.py`    the cores and the memory that a VM finds beside the GPUs of a node
* `in_one_vm.py` how many vGPUs of a profile one VM may have
* `whole.py`     GPUs that can be given whole
* `question.py`  `capacity`: the whole tree, now and after a night's suspends

Every figure is for its profile alone: vGPUs of different profiles use the same GPUs, so figures do not add up over
profiles. Where vCenter does not tell enough the figure is a range, or has no upper end.
"""
