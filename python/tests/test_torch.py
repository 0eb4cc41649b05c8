"""Tensors of torch as buffers."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_reduces_and_state(fleet):
    fleet(2, """
        import torch
        comm = join()
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8):
            send, recv = torch.full((5, 7), index + 1).to(dtype), torch.zeros(5, 7, dtype=dtype)
            assert comm.all_reduce(send, recv, op=ReduceOp.SUM).local_world_size == 2
            assert (recv == 3).all() and (send == index + 1).all(), dtype
        # Nobody but the library knows of this tensor while it is reduced.
        assert comm.all_reduce_async(torch.ones(50000), torch.zeros(50000), op=ReduceOp.AVG).wait()[0]
        for wrong in (torch.ones(4, 4).t()[1:], torch.ones(4, device="meta")):
            try:
                comm.all_reduce(wrong, wrong, op=ReduceOp.SUM)
                raise SystemExit("not refused")
            except InvalidBuffer:
                pass
        many = [torch.full((3,), float(index)), torch.full((4,), float(index))]
        comm.all_reduce_multiple_with_retry([ReduceOpDescriptor.from_torch(t, t, ReduceDescriptor(
            t.numel(), ReduceOp.MAX, tag, ReduceOperandDescriptor(DataType.FLOAT),
            QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE))) for tag, t in enumerate(many)])
        assert all((t == 1).all() for t in many)
        layer = torch.nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(7 if index == 0 else 0)
        halves = torch.full((3,), 1.5 if index == 0 else 0, dtype=torch.bfloat16)
        state = SharedState([TensorInfo.from_torch(p.data, name) for name, p in layer.named_parameters()]
                            + [TensorInfo.from_torch(halves, "halves")])
        state.revision = 1 if index == 0 else 0
        comm.sync_shared_state(state)
        assert all((p == 7).all() for p in layer.parameters()) and (halves == 1.5).all()
        """)
