"""The model on its way to the clients: in which numbers it is sent, which are those that they train from.

The server keeps its model in float32 and rounds what it sends. Updates are measured from what was sent. A model that
moves by less than bfloat16's spacing, 2^-8 of a number, therefore still adds up on the server.
"""

from __future__ import annotations

import torch
from torch import Tensor

DOWNLINKS = {
    "full": "float32, as the server has it",
    "bf16": "rounded to bfloat16, the nearest, half to even: two bytes a number",
}


def as_sent(params: Tensor, downlink: str) -> Tensor:
    """What clients receive of the server's model, in float32."""
    return params if downlink == "full" else params.to(torch.bfloat16).to(torch.float32)
