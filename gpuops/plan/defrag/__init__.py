"""Defragmentation: the fewest vMotions that free the most, in an order in which each finds its room.

* `standing.py`   which VMs may move: by vMotion, only powered off, or not at all, and why
* `targets.py`    which hosts may take a VM, whatever room they have
* `pieces.py`     the VMs as the search sees them; those that are alike are one kind
* `ground.py`     what does not change while VMs move: hosts, GPUs, kinds, and what a free GPU is worth
* `landing.py`    on which GPU a host puts a VM that arrives, as far as that is certain
* `table.py`      who is where in a cluster, one value per host
* `line.py`       moves one after another, and the table they lead to
* `goal.py`       what is to be freed
* `bound.py`      how much can be free at the most
* `greedy.py`     GPU by GPU, the cheapest first, with one VM making room for another: fleets
* `exact.py`      all orders of moves, shortest first: few GPUs
* `frontier.py`   the best plan for each number of moves, of one cluster and of all
* `audit.py`      the plan once more, by the rules that `attach` and the rotation follow
* `answer.py`     the plan with names, what is free before and after, and who stays
* `question.py`   all of it in order

Why only what is certain counts: a host chooses the GPU of a VM that arrives, and vMotion cannot be told otherwise. If
its documented policy leaves no choice the search goes on from there; among GPUs that are alike it does not matter which
it is; else the VM is counted on each of them, so that a GPU is thought fuller than it is and never emptier.
Why within a cluster: neither CPU features nor networks of hosts are read, and a cluster is where they are alike.
Why two searches: all orders of moves are too many for more than a dozen GPUs, and a rule alone proves nothing. The rule
goes first, so that the search of all orders need only look where something better could be.
"""
