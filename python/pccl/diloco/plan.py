"""What a setting costs: ``python -m pccl.diloco.plan --params 1e9 --mbit 200 --peers 8 --step-s 0.8``."""

import argparse
from typing import NamedTuple

#: Bits of a parameter on the wire, scales of blocks included.
BITS = {"none": 32.0, "bf16": 16.0, "int8": 8.0 + 32 / 256, "int4": 4.0 + 64 / 128, "int2": 2.0 + 32 / 64}
#: Round trips between members and to the master for one round: records, both halves of the exchange, the proof.
ROUND_TRIPS = 8


class Cost(NamedTuple):
    """The cost of one round for one member."""

    #: Bytes that it sends.
    sent_bytes: float
    #: The same of an all-reduce of all gradients in each step between two rounds, in f32.
    ddp_bytes: float
    #: Seconds of the exchange.
    exchange_s: float
    #: Of those, seconds behind inner steps.
    hidden_s: float
    #: The part of its time in which it computes.
    utilisation: float
    #: The same with an all-reduce in each step.
    ddp_utilisation: float


def cost(params: float, mbit: float, peers: int, step_s: float, every: int = 100, fragments: int = 1, overlap: int = 0,
         compress: str = "none", rtt_ms: float = 50.0) -> Cost:
    """The cost of a round, by bytes and round trips alone: each member sends its parts to the owners, and what it owns
    to all."""
    share = (peers - 1) / peers
    sent = 2 * share * params / fragments * BITS[compress] / 8
    rate = mbit * 1e6 / 8
    exchange = sent / rate + ROUND_TRIPS * rtt_ms / 1000
    between = every / fragments * step_s
    hidden = min(exchange, overlap * step_s)
    ddp = 2 * share * params * 4
    ddp_step = ddp / rate + 2 * rtt_ms / 1000
    return Cost(sent, ddp * every / fragments, exchange, hidden, between / (between + exchange - hidden),
                step_s / (step_s + ddp_step))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pccl.diloco.plan", description=__doc__)
    parser.add_argument("--params", type=float, required=True, help="parameters, such as 1e9")
    parser.add_argument("--mbit", type=float, required=True, help="uplink of the slowest member, in Mbit/s")
    parser.add_argument("--peers", type=int, required=True, help="members")
    parser.add_argument("--step-s", type=float, required=True, help="time of an inner step, in seconds")
    parser.add_argument("--rtt-ms", type=float, default=50.0, help="round trip between members, in milliseconds")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--overlap", type=int, default=5)
    given = parser.parse_args()
    if given.peers < 2 or min(given.params, given.mbit, given.step_s) <= 0 or given.every < 1:
        parser.error("at least 2 peers, and numbers above 0")
    if given.fragments < 1 or given.every % given.fragments or not 0 <= given.overlap <= given.every // given.fragments:
        parser.error("every is a multiple of fragments, and overlap lies between 0 and every / fragments")
    print(f"{given.params:g} parameters, {given.peers} peers of {given.mbit:g} Mbit/s, every {given.every}, "
          f"{given.fragments} fragments, overlap {given.overlap}")
    print(f"{'compress':>9} {'MB/round':>9} {'of DDP':>9} {'exchange':>9} {'hidden':>9} {'computes':>9}")
    for compress in BITS:
        it = cost(given.params, given.mbit, given.peers, given.step_s, given.every, given.fragments, given.overlap,
                  compress, given.rtt_ms)
        print(f"{compress:>9} {it.sent_bytes / 1e6:>9.1f} {'1/%.0f' % (it.ddp_bytes / it.sent_bytes):>9} "
              f"{it.exchange_s:>7.1f} s {it.hidden_s:>7.1f} s {it.utilisation:>8.0%} ")
    print(f"an all-reduce of f32 gradients in each step: computes {it.ddp_utilisation:.0%} of the time")


if __name__ == "__main__":
    main()
