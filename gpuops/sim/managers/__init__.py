"""The managers of a vCenter and of its hosts that only answer reads, as tables, and the making of all on demand."""
