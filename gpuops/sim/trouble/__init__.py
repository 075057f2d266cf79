"""Trouble: everything that goes wrong in a vCenter, on purpose and by address.

* `rule.py`: one `Rule` = which calls or tasks it strikes (method, object, nth, probability) and what happens to them.
* `injector.py`: the rules of a world and how often each has struck.
* `happenings.py`: what other people, hosts and vCenter itself do meanwhile: a VM deleted, a GPU taken, a host gone.
* `ending.py`: how a reply ends on the wire: whole, cut, never.
* `catalogue.py` with `catalogue.yaml`: the faults by their ids (T1, N4, V7 ...), each a rule or a few.
* `fault_file.py`: a file of faults for `gpuops sim serve --faults FILE`.

Every choice comes from the world's seed: the same seed, rules and calls give the same trouble.
"""
