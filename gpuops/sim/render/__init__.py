"""Makes vmomi values of the state, one file per part of an object. Nothing here changes anything."""
