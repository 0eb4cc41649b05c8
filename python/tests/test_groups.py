"""Groups of given members, and a world of one."""

import uuid

import pytest

pytest.importorskip("numpy")


def test_a_list_gives_the_ranks_and_a_loss_is_an_error_until_the_next_one(start, master):
    program = """
        comm = Communicator(address, first_ports=(0, 0), name=f"w{index}", formed_groups=True)
        comm.connect()
        data = numpy.full(4, float(index))
        try:
            comm.all_reduce(data, op="sum")
        except InvalidUsage as error:
            assert "form_group" in error.message
        else:
            raise SystemExit("there is no group")
        world = comm.form_group(1, ["w2", "w0", "w1"])
        assert (world.group_size, world.rank) == (3, (index + 1) % 3)
        comm.all_reduce(data, op="sum")
        assert (data == 3).all()
        say("formed")
        go()
        if index < 2:
            data[:] = index
            try:
                comm.all_reduce(data, op="sum")
            except GroupBroken as error:
                assert error.remedy is Remedy.FORM_GROUP and error.cause == "GroupBroken" and "w2" in error.message
                assert (data == index).all() and not error.retryable
            else:
                raise SystemExit("a member is missing")
            world = comm.form_group(2, ["w0", "w1"])
            comm.all_reduce(data, op="sum")
            assert (data == 1).all() and world.rank == index
            try:
                comm.form_group(3, ["w0", "w1", "nobody"], timeout=0.3 if index else 60)
            except PCCLError as error:
                assert "nobody (not connected)" in error.message and error.remedy is Remedy.FORM_GROUP
                assert isinstance(error, TimedOut) == bool(index)
            comm.form_group(4 + index, [comm.peer_id])
            comm.all_reduce(data, op="sum")
            assert (data == 1).all()
        say("done")
        """
    peers = [start(program, master, 3, index) for index in range(3)]
    for peer in peers:
        peer.expect("formed")
    peers[2].kill()
    for peer in peers[:2]:
        peer.go()
    for peer in peers[:2]:
        peer.expect("done")
        peer.finish()


def test_arguments(master):
    import pccl

    with pccl.Communicator(master, first_ports=(0, 0), formed_groups=True, name="me") as comm:
        comm.connect()
        for bad in (1, "me", b"me"):
            with pytest.raises(TypeError):
                comm.form_group(1, bad)
        with pytest.raises(TypeError):
            comm.form_group("1", ["me"])
        with pytest.raises(ValueError):
            comm.form_group(-1, ["me"])
        with pytest.raises(ValueError):
            comm.form_group(1, [b"short"])
        with pytest.raises(pccl.InvalidArgument):
            comm.form_group(1, [])
        with pytest.raises(pccl.InvalidUsage):
            comm.update_topology()
        assert comm.form_group(uuid.uuid4(), ["me"]).rank == 0


def test_a_world_of_one(master):
    import numpy

    import pccl

    with pccl.Communicator(master, first_ports=(0, 0)) as comm:
        comm.connect()
        with pytest.raises(pccl.TooFewPeers):
            comm.all_reduce(numpy.ones(3), op="avg")
    with pccl.Communicator(master, first_ports=(0, 0), world_of_one=True, state_memory=1 << 20,
                           state_spill_dir="/tmp") as comm:
        comm.connect()
        send, recv = numpy.arange(5.0), numpy.zeros(5)
        assert comm.all_reduce(send, recv, op="avg").world_size == 1
        assert (recv == send).all()
