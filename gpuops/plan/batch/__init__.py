"""Places a whole queue of requests at once by integer programming; `plan/place.py` calls `place_all`. See README.md."""
