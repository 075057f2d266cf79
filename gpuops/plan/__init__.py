"""Verbs, pure: a request and a snapshot in, a plan out. Nothing here acts, waits or reads a clock.

A request is a frozen dataclass with `plan(inventory, catalog, now) -> Plan`; its fields are the options of the CLI
command and the arguments of the Ansible module of the same name. A package imports only those before it:
`core` and `schedule`, `placement`, `devices`, `vm` and `moving`, `hosts`, `queue`, `rotation` and `capacity`, `doctor`.
"""
