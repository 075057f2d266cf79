"""Commands that say what would fit, how much, and where; none changes a vCenter without `--measure`."""
