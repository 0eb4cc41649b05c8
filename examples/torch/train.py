"""A replica that trains a small model of characters on the documents of this repository (MIT, like all of it)."""

import argparse
import json
import logging
import pathlib
import sys
import threading
import time

import torch
from torch import nn
from ways import WAYS

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH, LAYERS, HEADS, WINDOW, BATCH = 128, 4, 4, 64, 8


class Characters(nn.Module):
    """A decoder that predicts the next character."""

    def __init__(self, letters):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(WINDOW, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.layers, self.end = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False), nn.Linear(WIDTH, letters)
        self.register_buffer("future", torch.triu(torch.full((WINDOW, WINDOW), float("-inf")), 1), persistent=False)

    def forward(self, text):
        return self.end(self.layers(self.letter(text) + self.place.weight, mask=self.future, is_causal=True))


class Weights(nn.Module):
    """Nothing but weights, for measuring what it costs to average their gradients."""

    def __init__(self, mib):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(mib << 18))

    def forward(self, factor):
        return (self.weights * factor).sum()


def text_of(path):
    """The characters of a file, or of the documents, as numbers."""
    pages = (page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts)
    files = [path] if path else sorted(pages)
    text = "".join(file.read_text() for file in files)
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    return torch.tensor([numbers[letter] for letter in text]), len(letters)


def say(**what):
    """A line for whoever has started this; in one piece, because several threads say something."""
    sys.stdout.write(json.dumps({**what, "at": time.time()}) + "\n")
    sys.stdout.flush()


class Troubles(logging.Handler):
    """Reports what the libraries log because something failed."""

    def emit(self, record):
        if record.levelno >= logging.WARNING:
            say(trouble=record.getMessage())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--master", default="127.0.0.1:48148", help="of PCCL")
    parser.add_argument("--lighthouse", help="of torchft")
    parser.add_argument("--name", default="replica-0", help="what it is called; ends with -NUMBER, which decides what it reads")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--inner", type=int, default=10, help="steps of DiLoCo between two averages")
    parser.add_argument("--least", type=int, default=2, help="replicas that a step needs")
    parser.add_argument("--late", type=int, default=2, help="the same for the first step and the last third")
    parser.add_argument("--store", default="127.0.0.1:29500", help="of fixed ranks")
    parser.add_argument("--mib", type=int, help="measure: weights of this many MiB in the place of the model")
    parser.add_argument("--host", default="127.0.0.1", help="the address of this machine, for torchft")
    parser.add_argument("--wait", action="store_true", help="join after a line on the standard input")
    parser.add_argument("--troubles", action="store_true", help="report what fails, too")
    parser.add_argument("--gloo-timeout", type=float, default=10.0, help="limit of operations under torchft, in seconds")
    parser.add_argument("--text", type=pathlib.Path, help="a file instead of the documents")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if args.mib:
        model = Weights(args.mib)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    else:
        text, letters = text_of(args.text)
        model = Characters(letters)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    attempts = 0

    def loss_of(replica, step):
        nonlocal attempts
        attempts += 1
        if args.mib:
            return replica(1.0 + step)
        generator = torch.Generator().manual_seed(1000 * step + int(args.name.rpartition("-")[2]))
        starts = torch.randint(len(text) - WINDOW - 1, (BATCH,), generator=generator)
        windows = torch.stack([text[start:start + WINDOW + 1] for start in starts])
        return nn.functional.cross_entropy(replica(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    leaving = threading.Event()

    def report(step, members, loss):
        say(name=args.name, step=step, members=members, loss=round(loss, 4), attempts=attempts)
        if leaving.is_set():
            raise SystemExit(0)

    def leave_on_request():
        if sys.stdin.readline():
            leaving.set()

    if args.wait:
        sys.stdin.readline()
    threading.Thread(target=leave_on_request, daemon=True).start()
    if args.troubles:
        for library in ("pccl", "torchft"):
            logging.getLogger(library).addHandler(Troubles())
    try:
        WAYS[args.way](args, model, optimizer, loss_of, report)
    except Exception as error:
        if args.troubles:
            logging.getLogger("pccl").error("%s", error)
        raise


if __name__ == "__main__":
    main()
