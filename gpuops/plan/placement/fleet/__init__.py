"""The fleet as arrays: places for VMs among thousands of GPUs in about a millisecond.

Problem: the exact pass of `select.py` asks every GPU of every host, tens of microseconds each; a fleet has thousands.
Choice: GPUs are interned as states (`states.py`), each question about a state is answered once by the exact rules
(`tables.py`), and a decision is arithmetic on arrays (`choice.py`). The index (`index.py`) is built once from a
snapshot; for the next snapshot only hosts whose objects changed are read again.
What was given up: hosts where a check is in doubt, named devices and pinned vGPUs are left to the exact pass, and so is
every reason. What is chosen here is seated again by the exact rules before anyone is told.

`pool.py` goes one step further: it also chooses the GPU (`ask.py`, `across.py`), by what the rest is worth to the site
(`worth.py`, `prices.py`, `reserve.py`). It is measured by `tests/bench/{openb,profiles,departures}.py`. `place` does
not ask it yet: it would have to pin each vGPU that its host would put elsewhere.
"""
