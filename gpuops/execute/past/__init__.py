"""What past nights and changes came to: a fold of all records of a journal, for `gpuops history`; no vCenter is asked.

The journal's own state (`journal_state`) forgets what is over, so that a run opens it quickly; this reads it all.
"""
