"""What guests tell, and commands that run in them."""
