"""Rotation: idle desktops give up their GPUs at night, and every one of them is back in the morning.

* `night.py`, `day.py`     the two requests; `prospect.py` a night with all that speaks for it, and its plan
* `hours.py`, `bounds.py`  whether there is time, and what a night may take in all
* `desktops.py`            which desktops may be taken, and why the others stay
* `waiting.py`, `queue.py` which ML VMs wait, and which start where; `giving_way.py` who makes room for one of them
* `proposal.py`            where the scheduler would start them, from the evening as it sees it, `evening.py`
* `whereto.py`             the hosts that an ML VM may start on at all
* `proof.py`               that every desktop can come back, in the order of `placement/return_order.py`
* `return_time.py`         when that must begin, from `durations.py`, what operations took
* `guard.py`               what is asked once more just before a step that takes something
* `ours.py`, `status.py`   what nights have taken, from the journal and from vCenter's markers
* `foresight.py`           a night at any moment, with what it wins
"""
