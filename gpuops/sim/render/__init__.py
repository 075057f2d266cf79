"""State to vmomi values: pure renderers, one file per part of an object. Nothing here changes anything."""
