"""Rotation: idle desktops give up their GPUs at night, and every one of them is back in the morning.

* `night.py`, `day.py`   the two requests
* `desktops.py`          which desktops may be taken, and why the others stay
* `queue.py`             which ML VMs start where, and who makes room for them
* `room.py`              whether a VM can start on a host
* `return_order.py`      in which order desktops come back, and whether all of them can
* `ours.py`              what nights have taken, from the journal and from vCenter's markers
* `status.py`            all of it at one look
"""
