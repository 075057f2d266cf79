"""What a night may take, what it takes, and what is checked before each step of it."""
