"""Triton kernels that train many clients side by side, each with weights of its own."""
