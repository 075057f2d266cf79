"""Desktops as a broker and the sources of idleness tell of them."""
