"""What would fit, how much, and where."""
