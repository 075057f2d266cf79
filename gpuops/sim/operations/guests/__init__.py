"""Files and programs of guests."""
