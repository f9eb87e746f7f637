"""The model, a softmax regression, and the data of each client."""

import numpy as np

from everfed import Fleet, UniformWindow

CLIENTS, CLASSES, FEATURES = 3, 3, 8
FLEET, POLICY = Fleet.from_cycles([1, 2, 4]), UniformWindow()  # rounds in which each harvests one round's energy
CENTRES = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))


def load_data(client):
    """(training samples, their labels, test samples, their labels): each client has more of one class."""
    draw = np.random.default_rng(1 + client)
    labels = draw.choice(CLASSES, 120, p=np.where(np.arange(CLASSES) == client % CLASSES, 0.8, 0.1))
    samples = (CENTRES[labels] + draw.normal(size=(120, FEATURES))).astype(np.float32)
    return samples[:100], labels[:100], samples[100:], labels[100:]


def initial_model():
    return [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]


def probabilities(model, samples):
    scores = samples @ model[0] + model[1]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def train(model, samples, labels, epochs, learning_rate):
    """(the model after some epochs of gradient descent, its loss)."""
    for _ in range(epochs):
        wrong = (probabilities(model, samples) - np.eye(CLASSES, dtype=np.float32)[labels]) / len(labels)
        step = np.float32(learning_rate)
        model = [model[0] - step * (samples.T @ wrong), model[1] - step * wrong.sum(axis=0)]
    return model, evaluate(model, samples, labels)[0]


def evaluate(model, samples, labels):
    """(the mean loss, the accuracy)."""
    found = probabilities(model, samples)
    return float(-np.log(found[np.arange(len(labels)), labels]).mean()), float((found.argmax(axis=1) == labels).mean())
