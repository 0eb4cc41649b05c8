"""The handwritten digits of the examples, and a small network for them: in torch if it is installed, otherwise (or with
PCCL_EXAMPLE_WITHOUT_TORCH=1) in numpy.

Weights and gradients are one flat array of numpy each; torch works on the same memory.
"""

import csv
import gzip
import os

import numpy

try:
    if os.environ.get("PCCL_EXAMPLE_WITHOUT_TORCH"):
        raise ImportError("not wanted")
    import torch
except ImportError:
    torch = None
else:
    # Several peers share this machine, and the network is small.
    torch.set_num_threads(1)

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "pccl", "examples", "data", "digits.csv.gz")
PIXELS, HIDDEN, CLASSES = 64, 32, 10
SHAPES = [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
SIZE = sum(int(numpy.prod(shape)) for shape in SHAPES)
TEST_SAMPLES = 360


def load():
    """Training and test data, each as images and labels; shuffled always in the same way."""
    with gzip.open(DATA, "rt") as lines:
        table = numpy.array([[int(word) for word in row] for row in csv.reader(lines)])
    table = table[numpy.random.default_rng(1).permutation(len(table))]
    images, labels = (table[:, :PIXELS] / 16).astype(numpy.float32), table[:, PIXELS]
    return (images[TEST_SAMPLES:], labels[TEST_SAMPLES:]), (images[:TEST_SAMPLES], labels[:TEST_SAMPLES])


def initial_weights():
    """The same for everybody."""
    random = numpy.random.default_rng(2)
    layers = [random.normal(scale=shape[0] ** -0.5, size=shape) if len(shape) > 1 else numpy.zeros(shape)
              for shape in SHAPES]
    return numpy.concatenate([layer.ravel() for layer in layers]).astype(numpy.float32)


def layers_of(flat):
    """Views of the layers in a flat array."""
    views, at = [], 0
    for shape in SHAPES:
        size = int(numpy.prod(shape))
        views.append(flat[at:at + size].reshape(shape))
        at += size
    return views


class Sampler:
    """Random batches of the training data."""

    def __init__(self, data, seed=None):
        self.images, self.labels = data
        self.random = numpy.random.default_rng(seed)

    def batch(self, size=64):
        chosen = self.random.integers(len(self.labels), size=size)
        return self.images[chosen], self.labels[chosen]


def gradient_numpy(weights, images, labels):
    first, first_bias, second, second_bias = layers_of(weights)
    hidden = numpy.maximum(images @ first + first_bias, 0)
    scores = hidden @ second + second_bias
    slope = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    slope /= slope.sum(axis=1, keepdims=True)
    loss = -numpy.log(slope[numpy.arange(len(labels)), labels] + 1e-30).mean()
    slope[numpy.arange(len(labels)), labels] -= 1
    slope /= len(labels)
    back = (slope @ second.T) * (hidden > 0)
    layers = [images.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]
    return numpy.concatenate([layer.ravel() for layer in layers]).astype(numpy.float32), float(loss)


def gradient_torch(weights, images, labels):
    layers = [torch.from_numpy(layer).detach().requires_grad_() for layer in layers_of(weights)]
    hidden = torch.relu(torch.from_numpy(images) @ layers[0] + layers[1])
    loss = torch.nn.functional.cross_entropy(hidden @ layers[2] + layers[3], torch.from_numpy(labels))
    return torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, layers)]).numpy(), loss.item()


#: The gradient of the weights on a batch, and the loss.
gradient = gradient_numpy if torch is None else gradient_torch


def accuracy(weights, data):
    images, labels = data
    first, first_bias, second, second_bias = layers_of(weights)
    scores = numpy.maximum(images @ first + first_bias, 0) @ second + second_bias
    return float((scores.argmax(axis=1) == labels).mean())
