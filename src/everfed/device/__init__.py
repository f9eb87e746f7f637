"""Small devices: a node in one process, without PyTorch, for trainers in NumPy and for microcontrollers.

`python -m everfed.device run` is the node. It needs what the distribution `everfed-device` installs: NumPy, Flower,
safetensors and cryptography.
"""
