"""Tests run side by side with others on small machines: one thread each is fastest, and repeatable."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch

torch.set_num_threads(1)
