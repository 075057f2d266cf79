"""The fleet as arrays: places for VMs among thousands of GPUs in about a millisecond.

Problem: the exact pass of `select.py` asks every GPU of every host, tens of microseconds each; a fleet has thousands.
Choice: GPUs are interned as states (`states.py`), each question about a state is answered once by the exact rules
(`tables.py`), and a decision is arithmetic on arrays (`choice.py`, `own.py`). The index (`index.py`) is built once from
a snapshot; for the next snapshot only hosts whose objects changed are read again.
What was given up: hosts where a check is in doubt, named devices and pinned vGPUs are left to the exact pass, and so is
every reason. What is chosen here is seated again by the exact rules before anyone is told.

What a place costs is the engine's to say, for the exact pass too (`losses.py`): a pool (`pool.py`) for each GPU model
(`boards.py`, `board.py`), which knows what the rest is worth to the site's mix (`mix.py`, `site.py`): `worth.py`,
`prices.py`, `reserve.py`. The same pool is measured by `tests/bench/{openb,profiles,departures}.py`.
"""
