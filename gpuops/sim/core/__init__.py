"""Managed objects and what all of them share: registry, property paths, XML, sessions, the ledger, the clock."""
