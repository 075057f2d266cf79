"""Places a whole queue of requests at once by integer programming; `place.py` calls `place_all`. See README.md."""
