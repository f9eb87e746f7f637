"""The choice of a trainer, and its check against plain autograd."""
