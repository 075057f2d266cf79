"""The journal: what gpuops intends, durable before each effect, and what the morning must restore.

Problem: a run may be killed, or its disk fail, at any point; the next one must know what may be under way and what was
taken, and an auditor must see whether anybody changed that record afterwards.
Choice: append-only records (`record`), each chained to the one before it; a `store` returns from an append when the
records are durable and in their place, or says that somebody else took it. What is open, owed and known is a fold of
the records (`journal_state`), made anew from the last checkpoint by whoever opens the journal: nothing is updated in
place, and nothing that is read grows with the years. The journal says what we *intended*; only vCenter says what *is*.
Given up: nothing is ever deleted, so the file grows with the nights (the manual says by how much).
"""

from gpuops.execute.journal.journal import Journal
from gpuops.execute.journal.journal_reads import Intent
from gpuops.execute.journal.remembered import IntentState, Run
from gpuops.execute.journal.stores import FILE_NAME

__all__ = ["FILE_NAME", "Intent", "IntentState", "Journal", "Run"]
