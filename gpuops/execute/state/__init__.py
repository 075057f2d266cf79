"""The state directory of this machine: its files, the lock of each vCenter, and the audit log."""
