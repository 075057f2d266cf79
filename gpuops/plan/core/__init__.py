"""What every plan is made of: steps, plans and outcomes, what a step needs and when it is done, which hosts are meant.

All other packages of `plan/` import it, and it imports none of them.
"""
