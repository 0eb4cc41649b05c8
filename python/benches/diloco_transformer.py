"""A character-level transformer of 1.2 million parameters on the text of these documents (MIT licence, as this project),
by DDP with an average of gradients in each step, and by DiLoCo, at equal tokens, with several seeds.

    python python/benches/diloco_transformer.py --seeds 5

Each member is a process with one thread. Prints the loss on text that was held back, and the bytes that a member sends.
"""

import argparse
import glob
import json
import math
import os
import statistics
import subprocess
import sys

import pccl
import torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CONTEXT, WIDTH, HEADS, LAYERS = 64, 128, 4, 6
HELD_BACK = 65_536


def text():
    """Training and test data: the pages in the order of their names, as bytes."""
    pages = sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))
    data = b"\n".join(open(page, "rb").read() for page in pages)
    data = torch.tensor(list(data), dtype=torch.long).clamp_(max=127)
    return data[:-HELD_BACK], data[-HELD_BACK:]


class Transformer(torch.nn.Module):
    """Predicts the next byte."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(128, WIDTH), torch.nn.Embedding(CONTEXT, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu",
                                                 batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 128)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, inputs):
        at = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1]))
        return self.head(self.norm(self.layers(at, mask=self.mask, is_causal=True)))

    def loss(self, batch):
        scores = self(batch[:, :-1])
        return torch.nn.functional.cross_entropy(scores.reshape(-1, 128), batch[:, 1:].reshape(-1))


def batch_of(data, generator, size):
    begins = torch.randint(len(data) - CONTEXT - 1, (size,), generator=generator)
    return torch.stack([data[begin:begin + CONTEXT + 1] for begin in begins])


def rate_of(args, step):
    """Rises for 50 steps, then falls as a cosine to a tenth."""
    return args.rate * min(1.0, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * min(step / args.steps, 1.0)))


def member(args):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = Transformer()
    inner = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(1000 * args.seed + args.rank)
    training, test = text()

    def inner_step(step, reduce):
        for group in inner.param_groups:
            group["lr"] = rate_of(args, step)
        inner.zero_grad()
        model.loss(batch_of(training, generator, args.batch)).backward()
        reduce()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        inner.step()

    sent = 0
    if args.kind == "ddp":
        with pccl.Communicator(args.master, first_ports=(0, 0)) as comm:
            comm.connect()
            comm.wait_for_world(args.peers)

            def reduce():
                nonlocal sent
                sent += comm.all_reduce_many([it.grad for it in model.parameters()], op="avg").tx_bytes

            for step in range(args.steps):
                inner_step(step, reduce)
    else:
        from pccl.diloco import DiLoCo

        with DiLoCo(args.master, model, inner=inner, every=args.every, fragments=args.fragments, overlap=args.overlap,
                    compress=args.compress, outer=args.outer, min_world=args.peers, first_ports=(0, 0)) as run:
            while run.step_index < args.steps:
                inner_step(run.step_index, lambda: None)
                run.step(tokens=args.batch * CONTEXT)
            run.finish()
            sent = run.stats().sent_bytes
    model.eval()
    with torch.no_grad():
        batches = test[:HELD_BACK // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1).split(64)
        loss = statistics.fmean(float(model.loss(batch)) for batch in batches)
    print(json.dumps({"loss": loss, "sent": sent, "parameters": sum(it.numel() for it in model.parameters())}))


def run(args, kind, seed):
    with pccl.MasterNode("127.0.0.1:0") as master:
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--kind", kind, "--seed", str(seed),
                   "--master", f"127.0.0.1:{master.port}"]
        members = [subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE)
                   for rank in range(args.peers)]
        ends = [json.loads(it.communicate()[0].splitlines()[-1]) for it in members]
    if kind == "diloco" and len({end["loss"] for end in ends}) != 1:
        raise SystemExit("members end with different weights")
    return ends[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8, help="texts of 64 bytes in each step of a member")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--overlap", type=int, default=5)
    parser.add_argument("--compress", default="int4")
    parser.add_argument("--outer", default="nesterov 0.7 0.9")
    parser.add_argument("--kinds", default="ddp,diloco")
    for internal in ("--kind", "--master"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    for internal in ("--rank", "--seed"):
        parser.add_argument(internal, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind is not None:
        member(args)
        return
    sent = {}
    for kind in args.kinds.split(","):
        ends = []
        for seed in range(args.seeds):
            ends.append(run(args, kind, seed))
            print(f"{kind} seed {seed}: test loss {ends[-1]['loss']:.4f}", file=sys.stderr, flush=True)
        losses, sent[kind] = [end["loss"] for end in ends], statistics.fmean(end["sent"] for end in ends)
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        print(f"{kind:>6}: {ends[0]['parameters']} parameters, test loss {statistics.fmean(losses):.4f} (standard "
              f"deviation {spread:.4f}), {sent[kind] / 1e6:.2f} MB sent by each member", flush=True)
    if len(sent) == 2:
        print(f"bytes: 1/{sent['ddp'] / sent['diloco']:.0f}")


if __name__ == "__main__":
    main()
