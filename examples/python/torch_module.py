"""A module of torch, its optimiser and its scheduler, trained data-parallel on handwritten digits on one machine: a
master and three peers, one of which is killed and replaced. Needs torch.

    python examples/python/torch_module.py   all of it; exits with 0 only if all peers end with the same weights
    python examples/python/torch_module.py --peer ADDR  one peer of the run at ADDR

Everything that the training needs is in the shared state: parameters and running averages of the module, what AdamW
remembers, the rate that the scheduler has come to, the number of images seen. A replacement gets all of it in its first
sync.
"""

import argparse

import digits
import loopback
import numpy
import pccl

STEPS, BATCH = 200, 64


def network(torch):
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8, 8)), torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 6 * 6, 10))


def peer(address):
    torch = digits.torch
    (images, labels), (test_images, test_labels) = [[torch.from_numpy(part) for part in half] for half in digits.load()]
    torch.manual_seed(1)
    model = network(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    seen = pccl.Box(0)
    state = pccl.SharedState.of(model=model, optimizer=optimizer, scheduler=scheduler, seen=seen)
    # Other images on each peer.
    torch.seed()

    def step():
        chosen = torch.randint(len(labels), (BATCH,))
        # Buffers change in the forward pass, so they are those of the step only once it has succeeded.
        buffers = [buffer.clone() for buffer in model.buffers()]
        try:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            # Of the running averages of BatchNorm, too. Counts are the same on all peers.
            floats = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
            info = comm.all_reduce_many([parameter.grad for parameter in model.parameters()] + floats, op="avg")
        except pccl.PCCLError:
            for buffer, before in zip(model.buffers(), buffers):
                buffer.copy_(before)
            raise
        optimizer.step()
        scheduler.step()
        seen.value += BATCH * info.world_size
        loopback.step(comm.get_attribute("global_world_size"), state.revision, loss.item())

    def peers():
        # The first ones begin together, and the replacement has its part, however long it takes to start.
        return 2 if 0 < state.revision < STEPS // 2 else 3

    with pccl.Communicator(address, first_ports=(0, 0)) as comm:
        comm.run(step, state=state, steps=STEPS, min_world=peers)
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
        shared = [*model.state_dict().values(), *(one for kept in optimizer.state.values() for one in kept.values())]
        everything = [tensor.to(torch.float64).flatten() for tensor in shared] + [torch.tensor([seen.value,
                                                                                                *scheduler.get_last_lr()])]
        loopback.end(numpy.concatenate([part.numpy() for part in everything]), accuracy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", metavar="ADDR")
    arguments = parser.parse_args()
    if digits.torch is None:
        raise SystemExit("this example needs torch: pip install torch; the others run with numpy alone")
    peer(arguments.peer) if arguments.peer else loopback.run(__file__)
