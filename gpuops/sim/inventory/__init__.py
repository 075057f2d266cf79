"""The objects of the inventory as operations see them, and the faults that operations raise."""
