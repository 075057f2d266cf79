"""How and when everything that nights took comes back."""
