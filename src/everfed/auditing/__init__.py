"""Audits of a schedule before training: bias, variance, energy, and the distance from the optimum."""
