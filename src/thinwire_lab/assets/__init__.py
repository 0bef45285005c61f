"""Weights and texts out of ordinary packages: ``registry`` names them, the other modules make one kind each."""
