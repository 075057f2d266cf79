"""Carries out rolling changes host by host; each effect is in the journal first, so that a crash can be resumed."""
