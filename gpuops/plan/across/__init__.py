"""Which site a request across sites goes to: a pure choice over what each site's own night plan says of it.

Problem: an ML request without a site is to go where it fits best and longest, no team above what it may have over all
sites, and never to two sites. Choice: each site is asked for the plan of its next night, by the rules and the snapshot
that its night itself goes by (`offer.py`), so that "fits" means what the night will do, desktops that make room and the
return included. `choice.py` then goes through the requests in their order. A site that plans a request which goes
elsewhere has room that its plan did not count: it is asked anew, a few times.
Given up: an optimum over all sites. One after another is the rule that nights follow, and it can be explained.
"""
