"""Desktops as the broker and the sources of idleness report them."""
