"""What is there, what it does now, and what is wrong with it."""
