"""The journal: what gpuops intends, durable before each effect, and what the morning must restore.

Problem: a run may be killed, or its disk fail, at any point. The next run must know what may be in progress and what
was taken, and an auditor must see whether anyone changed the records afterwards.

Choice: append-only records (`record`), each chained to the one before it. A `store` returns from an append when the
records are durable and in their place, or reports that another process appended first. `journal_state` computes what is
open, owed and known from the records, starting from the last checkpoint each time the journal is opened: nothing is
updated in place, and reading does not get slower over the years. The journal states what we *intended*; only vCenter
states what *is*.

Given up: nothing is ever deleted, so the file grows with the nights (the manual says by how much).
"""

from gpuops.execute.journal.journal import Journal
from gpuops.execute.journal.journal_reads import Intent
from gpuops.execute.journal.record import IntentState, Run
from gpuops.execute.journal.stores import FILE_NAME

__all__ = ["FILE_NAME", "Intent", "IntentState", "Journal", "Run"]
