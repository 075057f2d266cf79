"""The lease on the lock VM, which keeps other machines away from a vCenter while a run changes it."""
