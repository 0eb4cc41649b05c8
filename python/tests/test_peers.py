"""Peers in processes of their own, against numpy."""

import pytest

pytest.importorskip("numpy")


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_type_and_operation(fleet, count):
    fleet(count, """
        comm = join()
        types = [t for t in DataType if t is not DataType.BFLOAT16]
        for dtype in types:
            inputs = [(numpy.arange(1, 101) % 3 + i + 1).astype(dtype.to_numpy_dtype()) for i in range(peers)]
            wanted = {ReduceOp.SUM: sum(inputs[1:], inputs[0]), ReduceOp.MAX: inputs[-1], ReduceOp.MIN: inputs[0]}
            for op, result in wanted.items():
                send, recv = inputs[index].copy(), numpy.zeros(100, dtype.to_numpy_dtype())
                info = comm.all_reduce(send, recv, op=op)
                assert info.world_size == peers and info.tx_bytes > 0
                assert (recv == result).all() and (send == inputs[index]).all(), (dtype, op)
                comm.all_reduce(send, send, op=op)
                assert (send == result).all()
        # numpy has no such type, but memory for it.
        data = numpy.full(5, 0x3f80, numpy.uint16)
        comm.all_reduce(data, data, op=ReduceOp.PROD, operand_descriptor=ReduceOperandDescriptor(DataType.BFLOAT16))
        assert (data == 0x3f80).all()
        """)


def test_several_at_once_many_and_quantised(fleet):
    fleet(3, """
        comm = join()
        # Nobody but the library knows of these arrays while they are reduced.
        handles = [comm.all_reduce_async(numpy.full(50000, index, numpy.float32), numpy.zeros(50000, numpy.float32),
                                         op=ReduceOp.SUM, tag=tag) for tag in range(8)]
        try:
            comm.update_topology()
            raise SystemExit("not refused")
        except PCCLError as error:
            assert error.result is Result.PENDING_ASYNC_OPS and not error.retryable
        assert not comm.are_peers_pending()
        for handle in handles:
            ok, status, info = handle.wait()
            assert (ok, status, info.local_world_size) == (True, 0, 3) and handle.done() and handle.wait()[0]
        arrays = [numpy.full(10 + i, index + 1.0) for i in range(5)]
        many = [ReduceOpDescriptor.from_numpy(a, a, ReduceDescriptor(a.size, ReduceOp.AVG, i,
                ReduceOperandDescriptor(DataType.DOUBLE), QuantizationOptions(DataType.DOUBLE, QuantizationAlgorithm.NONE)))
                for i, a in enumerate(arrays)]
        assert comm.all_reduce_multiple_with_retry(many, max_in_flight=2).local_world_size == 3
        assert all((a == 2).all() for a in arrays)
        data = numpy.linspace(-1, 1, 10000, dtype=numpy.float32)
        info = comm.all_reduce(data, data, op=ReduceOp.AVG, quantization_options=QuantizationOptions())
        assert abs(data - numpy.linspace(-1, 1, 10000)).max() < 0.02 and info.tx_bytes < 40000
        """)


@pytest.mark.parametrize("count", [2, 3])
def test_schedules(fleet, count):
    fleet(count, """
        import time
        comm = join()
        deadline = time.monotonic() + 100

        def average(how):
            comm.schedule = how
            assert comm.schedule is how
            data = numpy.arange(100000, dtype=numpy.float32) + index
            info = comm.all_reduce(data, data, op=ReduceOp.AVG)
            assert (data == numpy.arange(100000) + (peers - 1) / 2).all()
            return info.schedule

        assert average(Schedule.AUTOMATIC) is not Schedule.AUTOMATIC
        assert average(Schedule.RING) is Schedule.RING
        taken = average(Schedule.PAIRWISE)
        # Around the ring until all pairs are connected.
        while peers > 2 and taken is Schedule.RING:
            assert time.monotonic() < deadline
            taken = average(Schedule.PAIRWISE)
        assert taken is (Schedule.PAIRWISE if peers > 2 else Schedule.RING)
        data = numpy.linspace(-1, 1, 10000, dtype=numpy.float32)
        info = comm.all_reduce(data, data, op=ReduceOp.AVG, quantization_options=QuantizationOptions())
        # The ranges of chunks are less than 2, and each value is rounded twice.
        assert abs(data - numpy.linspace(-1, 1, 10000)).max() < 2 / 255 and info.schedule is taken
        comm.schedule = Schedule.RING if index == 0 else Schedule.PAIRWISE
        try:
            comm.all_reduce(data, data, op=ReduceOp.SUM)
            raise SystemExit("not refused")
        except PCCLError as error:
            assert error.cause == "MismatchedCall" and "pairwise" in error.message, error
        """)


def test_sites_that_are_named(fleet):
    fleet(5, """
        import time
        # Two sites of two, and a peer without a name, which is a site by itself.
        comm = Communicator(address, first_ports=(0, 0), site=[None, "eu-west", "us-east/2"][(index + 1) // 2])
        comm.connect()
        comm.wait_for_world(peers)
        deadline = time.monotonic() + 100

        def average(how):
            comm.schedule = how
            data = numpy.arange(100000, dtype=numpy.float32) + index
            info = comm.all_reduce(data, data, op=ReduceOp.AVG)
            assert (data == numpy.arange(100000) + (peers - 1) / 2).all()
            return info.schedule

        # Around the ring until all pairs are connected.
        while (taken := average(Schedule.SITES)) is not Schedule.SITES:
            assert taken is Schedule.RING and time.monotonic() < deadline
        # Nothing is measured, so only who asks for sites has them.
        assert average(Schedule.AUTOMATIC) is Schedule.RING
        """)


def test_shared_state_moves_what_differs(fleet):
    fleet(3, """
        comm = join()
        weights = numpy.full((10, 10), 7.0 if index == 0 else 0.0, numpy.float32)
        halves, step = numpy.full(3, index == 0, numpy.float16), bytearray(8)
        state = SharedState([TensorInfo.from_numpy(weights, "weights"), TensorInfo.from_numpy(halves, "halves"),
                             TensorInfo.from_buffer(step, "step")])
        state.revision = 5 if index == 0 else 0
        info = comm.sync_shared_state(state)
        assert state.revision == 5 and (weights == 7).all() and (halves == 1).all()
        assert info.rx_bytes == (0 if index == 0 else 406), info
        # Nobody leaves before the next sync.
        world = comm.world()
        assert world.group_size == len(comm.ring()) == 3 and world.rank < 3
        assert len(comm.status()["peers"]) == 3 and comm.is_connected and comm.last_verdict is None
        assert comm.get_attribute(Attribute.LOCAL_WORLD_SIZE) == 3
        weights += 1
        state.push_revision()
        assert comm.sync_shared_state(state, SharedStateSyncStrategy.ENFORCE_POPULAR).rx_bytes == 0
        assert state.revision == 6
        comm.close_within(10)
        """)


TRAINING = """
newcomer = index == 3
comm = Communicator(address, first_ports=(0, 0))
comm.connect()
if not newcomer:
    comm.wait_for_world(peers)
weights = numpy.zeros(1000, numpy.float32)
state = SharedState([TensorInfo.from_numpy(weights, "weights")])

def step():
    comm.sync_shared_state(state)
    gradient = numpy.ones(1000, numpy.float32)
    comm.all_reduce(gradient, gradient, op=ReduceOp.AVG)
    weights[:] += gradient
    state.push_revision()
    # Those who wait begin with the sync, and so do the others after this.
    if comm.are_peers_pending():
        comm.update_topology()

say("in")
shrunk = False
while not newcomer:
    try:
        step()
    except PCCLError as error:
        assert error.retryable and "died" in error.verdict, error
    size = comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
    if size == 2 and not shrunk:
        shrunk = True
        say("survived")
    if size == 3 and shrunk:
        break
for _ in range(3):
    step()
info = comm.sync_shared_state(state)
assert info.rx_bytes == 0 and (weights == weights[0]).all()
say(f"end {state.revision} {weights[0]}")
go()
"""


def test_a_kill_and_a_rejoin_end_in_identical_weights(master, start):
    peers = [start(TRAINING, master, 3, index) for index in range(3)]
    for peer in peers:
        peer.expect("in")
    peers.pop().kill()
    for peer in peers:
        peer.expect("survived")
    peers.append(start(TRAINING, master, 3, 3))
    peers[-1].expect("in")
    ends = {peer.expect("end") for peer in peers}
    assert len(ends) == 1, ends
    for peer in peers:
        peer.go()
    for peer in peers:
        peer.finish()


def test_figures_that_a_program_reports_are_in_the_status(fleet):
    fleet(2, """
        import time
        comm = join()
        comm.report(step=7, loss=float("nan"))
        comm.report(step=8)
        for bad in ("two words", "", "x" * 33):
            try:
                comm.report(**{bad: 1.0})
                raise SystemExit("not refused")
            except PCCLError as error:
                assert error.result is Result.INVALID_ARGUMENT and "1 to 32 bytes" in error.message, error
        deadline = time.monotonic() + 60
        while not all(it["figures"] == {"step": 8.0, "loss": None} for it in comm.status()["peers"]):
            assert time.monotonic() < deadline, comm.status()
            time.sleep(0.05)
        comm.barrier()
        """)
