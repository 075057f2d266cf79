"""The rules by which calls, tasks and reads go wrong; `wire.endpoint` and the task table apply them.

* `rule.py` with `catalogue.yaml`: one `Rule` says which calls or tasks it applies to (method, object, nth, probability)
  and what happens to them; `Fault` is a fault of the catalogue by its id (T1, N4, V7 ...), `OutsideEvent` a kind of
  event outside the calls, which `gpuops.sim.outside_events` implements.
* `injector.py`: the rules of a world and how often each has been applied.

Every choice comes from the world's seed: the same seed, rules and calls give the same faults.
"""
