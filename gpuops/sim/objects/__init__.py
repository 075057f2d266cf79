"""The managed objects of the inventory as clients see them: properties and methods, one file per type and its kin."""
