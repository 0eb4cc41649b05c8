"""Collectives beside all-reduce, against numpy and torch."""

import pytest

import pccl

pytest.importorskip("numpy")


@pytest.mark.parametrize("count", [2, 3])
def test_each_collective(fleet, count):
    fleet(count, """
        comm = join()
        rank = comm.world().rank
        ranks = numpy.zeros(peers, numpy.int64)
        assert comm.all_gather(numpy.array([rank]), ranks).world_size == peers
        assert (ranks == numpy.arange(peers)).all()

        for root in range(peers):
            data = numpy.full(1000, rank + 1.0, numpy.float32)
            comm.broadcast(data, root)
            assert (data == root + 1).all()
            data = numpy.full(1000, rank + 1, numpy.int32)
            comm.reduce(data, root, op="sum")
            assert (data == (peers * (peers + 1) // 2 if rank == root else rank + 1)).all()

        counts = [3 * one for one in range(peers)]
        wanted = numpy.concatenate([numpy.full(counts[one], one + 0.5) for one in range(peers)])
        gathered = numpy.zeros(sum(counts))
        comm.all_gather(numpy.full(counts[rank], rank + 0.5), gathered, counts=counts)
        assert (gathered == wanted).all()

        whole = numpy.arange(peers * 50, dtype=numpy.float64)
        part = numpy.zeros(50)
        comm.reduce_scatter(whole, part, op="avg")
        assert (part == whole[rank * 50:(rank + 1) * 50]).all()
        whole, part = numpy.arange(sum(counts), dtype=numpy.int64), numpy.zeros(counts[rank], numpy.int64)
        comm.reduce_scatter(whole, part, op="sum", counts=counts)
        begin = sum(counts[:rank])
        assert (part == peers * whole[begin:begin + counts[rank]]).all()

        # Samples 1, 2, ... of the values 1, 2, ...
        data = numpy.full(100, rank + 1.0)
        comm.weighted_average(data, rank + 1)
        weights = numpy.arange(1, peers + 1)
        assert numpy.allclose(data, (weights * weights).sum() / weights.sum())
        comm.barrier()
        """)


@pytest.mark.parametrize("count", [2, 3])
def test_moves(fleet, count):
    fleet(count, """
        comm = join()
        rank = comm.world().rank
        counts = [3 * one for one in range(peers)]
        for root in range(peers):
            whole = numpy.zeros(peers * 40, numpy.float32) if rank == root else None
            comm.gather(numpy.full(40, rank, numpy.float32), whole, root)
            if rank == root:
                assert (whole == numpy.repeat(numpy.arange(peers), 40)).all()
            part = numpy.zeros(40, numpy.float32)
            assert comm.scatter(whole, part, root).world_size == peers
            assert (part == rank).all()

            whole = numpy.arange(sum(counts)) if rank == root else None
            part = numpy.zeros(counts[rank], numpy.int64)
            comm.scatter(whole, part, root, counts=counts)
            assert (part == numpy.arange(sum(counts[:rank]), sum(counts[:rank + 1]))).all()
            back = numpy.zeros(sum(counts), numpy.int64) if rank == root else None
            comm.gather(part, back, root, counts=counts)
            assert back is None or (back == whole).all()

        given, taken = numpy.repeat(numpy.arange(peers), 10) + 100 * rank, numpy.zeros(10 * peers, numpy.int64)
        comm.all_to_all(given, taken)
        assert (taken == numpy.repeat(100 * numpy.arange(peers), 10) + rank).all()

        # Each gives rank d d elements and one more for each rank before its own.
        to = [other + rank for other in range(peers)]
        of = [other + rank for other in range(peers)]
        table = comm.exchange_counts(to, of)
        assert table == [[row + column for column in range(peers)] for row in range(peers)], table
        given, taken = numpy.repeat(numpy.arange(peers), to) + 100 * rank, numpy.zeros(sum(of), numpy.int64)
        handle = comm.all_to_all_async(given, taken, counts=table)
        handle.result()
        assert (taken == numpy.repeat(100 * numpy.arange(peers), of) + rank).all()

        of[0] += rank == 1
        try:
            comm.exchange_counts(to, of)
            raise AssertionError("rank 1 expects too much")
        except pccl.InvalidArgument as error:
            assert "rank 0 gives rank 1 1 elements, and rank 1 takes 2" in str(error), error
        for call in (lambda: comm.all_to_all(given, numpy.zeros(len(given) + 1, numpy.int64)),
                     lambda: comm.all_to_all(given, numpy.zeros(len(given))),
                     lambda: comm.gather(given, numpy.zeros(3), rank)):
            try:
                call()
                raise AssertionError("it does not fit")
            except pccl.InvalidBuffer:
                pass
        for counts in ([[1, 2]], [[1] * peers] * (peers - 1)):
            try:
                comm.all_to_all(given, taken, counts=counts)
                raise AssertionError("not one count for each pair")
            except ValueError:
                pass
        try:
            comm.gather(numpy.zeros(3), None, rank)
            raise AssertionError("the root has no memory for it")
        except pccl.InvalidArgument:
            pass
        comm.barrier()
        """)


def test_where_states_differ(fleet):
    fleet(3, """
        comm = join()
        rank, ring = comm.world().rank, comm.ring()
        weights, step = numpy.ones(100_000, numpy.float32), pccl.Box(7)
        state = pccl.SharedState({"weights": weights, "step": step})
        diff = comm.diff_shared_state(state)
        assert not diff and diff.tensors == [] and "same on all peers" in str(diff), diff
        if rank == 1:
            weights[60_000] = 3.5
        before = weights.copy()
        diff = comm.diff_shared_state(state, timeout=60)
        assert diff and (weights == before).all()
        tensor, = diff.tensors
        assert (tensor.name, tensor.first_element, tensor.contents) == ("weights", 60_000, 2), tensor
        assert tensor.begin <= 60_000 < tensor.end <= 100_000
        assert tensor.peers_apart == [ring[1]] and tensor.is_apart == (rank == 1)
        assert "3.5" in diff.text and '"weights"' in str(diff), diff.text
        seen = []
        info = comm.sync_shared_state(state, progress=seen.append)
        assert (weights == 1).all() and (info.rx_bytes > 0) == (rank == 1) == bool(seen), (info, seen)
        if seen:
            assert (seen[-1].done_bytes, seen[-1].total_bytes) == (info.rx_bytes, info.rx_bytes), seen
        other = pccl.SharedState({"weights": weights if rank else weights[:5]})
        try:
            comm.diff_shared_state(other)
            raise SystemExit("peers with other tensors were compared")
        except pccl.InvalidArgument as error:
            assert "Float32[5]" in str(error) and "Float32[100000]" in str(error), error
        comm.barrier()
        """)


@pytest.mark.parametrize("count", [2, 4])
def test_send_and_receive(fleet, count):
    fleet(count, """
        comm = join()
        rank = comm.world().rank
        for shift in range(1, peers):
            to, source = (rank + shift) % peers, (rank - shift) % peers
            own, other = numpy.full(5000, rank, numpy.int64), numpy.full(5000, -1, numpy.int64)
            # One tag in both directions, and among all.
            handles = [comm.send_async(own, to, tag=1), comm.recv_async(other, source, tag=1)]
            total = numpy.ones(10, numpy.float32)
            handles.append(comm.all_reduce_async(total, op="sum", tag=1))
            for handle in handles:
                handle.result()
            assert (own == rank).all() and (other == source).all() and (total == peers).all()
        if rank == 0:
            comm.send(numpy.arange(3), 1)
        elif rank == 1:
            got = numpy.zeros(3, numpy.int64)
            assert comm.recv(got, 0).world_size == 2
            assert (got == numpy.arange(3)).all()
        for call in (comm.send, comm.recv):
            try:
                call(numpy.zeros(3), rank)
                raise AssertionError("to itself")
            except pccl.PCCLError as error:
                assert "itself" in str(error), error
        comm.barrier()
        """)


def test_segments_say_who_has_contributed(fleet):
    fleet(3, """
        comm = join()
        rank = comm.world().rank
        data = numpy.arange(10, dtype=numpy.float32) + 3 * rank
        done = comm.all_reduce_in_segments(data, segment_bytes=16, op="avg")
        assert [(one.first, one.count, one.contributors) for one in done] == [(0, 4, 3), (4, 4, 3), (8, 2, 3)], done
        assert all(one.rank == rank for one in done) and done[1].elements == range(4, 8)
        assert (data == numpy.arange(10) + 3).all(), data
        result = numpy.zeros_like(data)
        assert len(comm.all_reduce_in_segments(data, result, segment_bytes=1 << 20, op="sum", tag=8)) == 1
        assert (result == 3 * data).all(), result
        try:
            comm.all_reduce_in_segments(data, segment_bytes=16 + 4 * (rank == 1), op="sum", tag=9)
            raise SystemExit("sizes that differ")
        except Mismatch as error:
            assert list(error.done) == [] and "in segments of 20 bytes" in str(error), error
        for wrong in (0, -1, 1.5):
            try:
                comm.all_reduce_in_segments(data, segment_bytes=wrong, op="sum")
                raise SystemExit("not refused")
            except (ValueError, TypeError):
                pass
        """)


def test_contributions_are_clipped_to_the_median(fleet):
    fleet(3, """
        comm = join()
        rank, ring = comm.world().rank, comm.ring()
        large = 100.0 if rank == 1 else 1.0
        first, second = numpy.array([3.0 * large], numpy.float32), numpy.array([[-4.0 * large, 0.0]])
        clip = comm.clip_to_median([first, second], 10)
        assert (clip.median, clip.norm) == (5.0, 5.0 * large), clip
        assert [one.peer for one in clip.peers] == ring and [one.norm for one in clip.peers] == [5.0, 500.0, 5.0]
        assert [one.peer for one in clip.outliers] == [ring[1]] and clip.scale == (0.1 if rank == 1 else 1.0)
        if rank == 1:
            assert first[0] == numpy.float32(300.0 * 0.1) and second[0, 0] == -400.0 * 0.1
        else:
            assert first[0] == 3 and second[0, 0] == -4
        # Then the average.
        comm.all_reduce_many([first, second], op="avg")
        assert abs(first[0] - 12) < 1e-5

        data = numpy.full(10, large)
        before = data.copy()
        for factor in (0, -1, float("nan"), float("inf")):
            try:
                comm.clip_to_median(data, factor)
                raise SystemExit(f"a factor of {factor}")
            except ValueError:
                pass
        for wrong in ([], numpy.ones(3, numpy.int32), [data, data]):
            try:
                comm.clip_to_median(wrong, 3, tag=4)
                raise SystemExit("not refused")
            except ValueError:
                assert (data == before).all()
        try:
            comm.clip_to_median(data, 2.0 + (rank == 2), tag=5)
            raise SystemExit("factors that differ")
        except InvalidArgument as error:
            assert "factors that differ: 2 by" in str(error) and (data == before).all(), error
        if rank == 2:
            data[7] = numpy.nan
        try:
            comm.clip_to_median(data, 2.0, tag=6)
            raise SystemExit("NaN")
        except NotFinite as error:
            assert error.culprits == (ring[2],) and "at element 7" in str(error), error
        if rank == 0:
            try:
                comm.clip_to_median(data, 2.0, tag=7, timeout=0.2)
                raise SystemExit("nobody else has called it")
            except TimedOut:
                assert (data == before).all()
        comm.barrier(tag=8)
        # bfloat16, which numpy does not know: 2 and 4096.
        halves = numpy.full(4, 0x4580 if rank == 1 else 0x4000, numpy.uint16)
        clip = comm.clip_to_median(halves, 2, tag=9, operand_descriptor=ReduceOperandDescriptor(DataType.BFLOAT16))
        assert clip.median == 4 and (halves == (0x4080 if rank == 1 else 0x4000)).all(), halves
        """)


def test_several_in_flight(fleet):
    fleet(2, """
        comm = join()
        rank = comm.world().rank
        handles = []
        data = [numpy.full(5000, rank + i, numpy.float32) for i in range(4)]
        both, mine = numpy.zeros(10000, numpy.float32), numpy.zeros(2500, numpy.float32)
        handles.append(comm.broadcast_async(data[0], 1))
        handles.append(comm.reduce_async(data[1], 0, op="max"))
        handles.append(comm.weighted_average_async(data[2], 1.0 - rank))
        handles.append(comm.all_gather_async(data[3], both, tag=77))
        handles.append(comm.reduce_scatter_async(numpy.ones(5000, numpy.float32), mine, op="sum"))
        handles.append(comm.barrier_async())
        for handle in handles:
            assert handle.result().world_size == 2
        assert (data[0] == 1).all() and (data[1] == (2 if rank == 0 else 2)).all() and (data[2] == 2).all()
        assert (both[:5000] == 3).all() and (both[5000:] == 4).all() and (mine == 2).all()
        """)


def test_tensors_of_torch(fleet):
    pytest.importorskip("torch")
    fleet(2, """
        import torch
        comm = join()
        rank = comm.world().rank
        weights = torch.full((10, 10), float(rank))
        comm.broadcast(weights, 1)
        assert bool((weights == 1).all())
        losses = torch.zeros(2)
        comm.all_gather(torch.tensor([rank + 0.25]), losses)
        assert losses.tolist() == [0.25, 1.25]
        half = torch.ones(8, dtype=torch.bfloat16) * (rank + 1)
        comm.weighted_average(half, 3 - 2 * rank)
        assert bool((half == 1.25).all())
        gradient = torch.full((4,), 1.0 if rank else 64.0, dtype=torch.float16)
        assert comm.clip_to_median([gradient], 2).outliers[0].norm == 128.0
        assert gradient.tolist() == ([1.0] * 4 if rank else [2.0] * 4)
        """)


def test_what_does_not_fit_is_an_error_and_changes_nothing(fleet):
    fleet(2, """
        comm = join()
        data, before = numpy.ones(6), numpy.ones(6)

        def refused(error, call):
            try:
                call()
            except error:
                assert (data == before).all()
                return
            raise SystemExit(f"not refused with {error}")

        refused(InvalidArgument, lambda: comm.broadcast(data, 2))
        refused(ValueError, lambda: comm.broadcast(data, -1))
        refused(InvalidArgument, lambda: comm.all_gather(numpy.ones(4), data))
        refused(InvalidArgument, lambda: comm.all_gather(numpy.ones(3), data, counts=[1, 2, 3]))
        refused(InvalidArgument, lambda: comm.reduce_scatter(data, numpy.ones(4), op="sum"))
        refused(InvalidBuffer, lambda: comm.all_gather(numpy.ones(3, numpy.float32), data))
        refused(ValueError, lambda: comm.weighted_average(data, float("nan")))
        refused(ValueError, lambda: comm.weighted_average(data, -1))
        refused(InvalidArgument, lambda: comm.weighted_average(numpy.ones(3, numpy.int32), 1))
        refused(TypeError, lambda: comm.reduce(data, 0, "sum"))
        refused(ValueError, lambda: comm.reduce(data, 0, op="median"))
        # Three ranks, in a group of two: all of them hear of it.
        refused(Aborted, lambda: comm.all_gather(numpy.ones(2), data))
        comm.barrier()
        """)
