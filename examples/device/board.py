"""A microcontroller, as far as its gateway can tell: plain Python without NumPy, a linear model, one battery.

    python board.py 127.0.0.1:7070 7 samples.txt

Every line of the file is a sample: its features, then its class. The protocol is in `everfed.device.gateway`.
"""

import math
import socket
import struct
import sys
import zlib

CLASSES = 10


def draws(seed, client, step, batch, samples):
    """Numbers of a minibatch: Philox4x32-10 over (step, block, client, purpose), as everfed draws them."""
    out = []
    for block in range((batch + 3) // 4):
        c, k = [step, block, client, 3], [seed & 0xFFFFFFFF, seed >> 32]
        for turn in range(10):
            if turn:
                k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
            p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [(q >> 32) ^ c[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        out += [(word * samples) >> 32 for word in c]
    return out[:batch]


def train(model, samples, client, round, steps, batch, lr, seed):
    """Softmax regression: weights [classes, features], then biases, flat. Returns the mean loss."""
    features, total = len(model) // CLASSES - 1, 0.0
    bias = CLASSES * features
    for step in range(steps):
        slopes = [0.0] * len(model)
        for number in draws(seed, client, round * steps + step, batch, len(samples)):
            *x, label = samples[number]
            rows = [range(c * features, (c + 1) * features) for c in range(CLASSES)]
            scores = [
                sum(model[i] * v for i, v in zip(row, x, strict=True)) + model[bias + c] for c, row in enumerate(rows)
            ]
            top = max(scores)
            sizes = [math.exp(s - top) for s in scores]
            total -= math.log(sizes[int(label)] / sum(sizes)) / batch
            for c, row in enumerate(rows):
                slope = (sizes[c] / sum(sizes) - (c == label)) / batch
                slopes[bias + c] += slope
                for i, v in zip(row, x, strict=True):
                    slopes[i] += slope * v
        for i, slope in enumerate(slopes):
            model[i] -= lr * slope
    return total / steps


def answer(line, stream, client, samples):
    """What a board says to a line."""
    words = line.decode("ascii").split()
    if words[0] == "ENERGY":
        return b"ENERGY 1.0\n"  # a real one reads its battery
    if words[0] != "TRAIN":
        return b"FAIL unknown command\n"
    round, steps, batch, seed, n = (int(words[i]) for i in (1, 2, 3, 5, 6))
    content = stream.read(4 * n)
    if stream.read(4) != struct.pack("<I", zlib.crc32(content)):
        return b"FAIL damaged\n"
    model = list(struct.unpack(f"<{n}f", content))
    loss = train(model, samples, client, round, steps, batch, float(words[4]), seed)
    content = struct.pack(f"<{n}f", *model)
    return f"DONE {loss:.6f} {n}\n".encode() + content + struct.pack("<I", zlib.crc32(content))


def main(address, client, path):
    with open(path) as file:
        samples = [[float(word) for word in line.split()] for line in file]
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rwb") as stream:
        stream.write(f"HELLO {client}\n".encode())
        stream.flush()
        while line := stream.readline():
            stream.write(answer(line, stream, int(client), samples))
            stream.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
