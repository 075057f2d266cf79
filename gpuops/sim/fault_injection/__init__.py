"""Holds the rules by which calls, tasks and reads go wrong; `wire.dispatch` and the task table apply them.

* `rule.py`: one `Rule` says which calls or tasks it applies to (method, object, nth, probability) and what happens to
  them, and how a reply then ends on the wire: whole, cut, never.
* `injector.py`: the rules of a world and how often each has been applied.
* `outside_event.py`: one kind of event outside the calls; the events themselves are in `gpuops.sim.outside_events`.
* `catalogue.py` with `catalogue.yaml`: the faults by their ids (T1, N4, V7 ...), each with one or more rules.

Every choice comes from the world's seed: the same seed, rules and calls give the same faults.
"""
