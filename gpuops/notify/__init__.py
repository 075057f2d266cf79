"""Notices: kept in an outbox of the state directory before they are sent, and until each receiver has accepted them.

A run is entered in the outbox when it begins and taken out when it ends, in the same commit as its notice is put in: a
run that is killed anywhere in between is told of by the next one, or by `gpuops notify flush`.
"""
