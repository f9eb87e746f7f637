"""The fast trainer: models lowered to Triton kernels that train many clients side by side."""
