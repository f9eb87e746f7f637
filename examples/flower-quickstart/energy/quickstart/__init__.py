"""A small app for Flower."""
