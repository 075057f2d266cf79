"""Past nights and changes, from all records of a journal, for `gpuops history`. Sends no request to vCenter.

The journal's own state (`journal_state`) drops what is over, so that a run opens it quickly; this reads every record.
"""
