"""Notices: kept in an outbox of the state directory before they are sent, and until each receiver has accepted them.

A run is entered in the outbox when it begins. When it ends, one commit removes it and adds its notice. If a run is
killed in between, the next run or `gpuops notify flush` sends a notice about it.
"""
