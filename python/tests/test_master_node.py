"""A master in the process of a script: when the script waits for it, and when it does not."""

import signal
import subprocess
import sys
import time

import pytest
from ports import free_port

from pccl import Communicator, MasterNode, PCCLError

#: A script that does not end is a failure after this time.
PATIENCE_S = 60
SCRIPTS = {
    "at the top": "m = start()",
    "in a function": "def main():\n    m = start()\nmain()",
}
FAILURES = {
    "an exception": ("m = start(); raise ValueError", 1),
    "the end of the program": ("m = start(); sys.exit(3)", 3),
    "a caught exception": ("def main():\n    m = start()\n    raise ValueError\n"
                           "try:\n    main()\nexcept ValueError:\n    print('caught', flush=True)", 0),
    "the end in a function": ("def main():\n    m = start()\n    sys.exit(4)\nmain()", 4),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_that_only_runs_a_master_stays_until_it_is_interrupted(script):
    # As users write it: whoever makes the master runs it.
    script = script.replace("m = start()", "m = pccl.MasterNode('127.0.0.1:0'); m.run(); print(m.port, flush=True)")
    program = subprocess.Popen([sys.executable, "-c", "import pccl, sys\n" + script], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    port = int(program.stdout.readline())
    with Communicator(f"127.0.0.1:{port}", first_ports=(0, 0)) as comm:
        comm.connect()
    assert program.poll() is None
    program.send_signal(signal.SIGINT)
    program.wait(PATIENCE_S)
    program.stdout.close()


@pytest.mark.parametrize("script, status", FAILURES.values(), ids=FAILURES.keys())
def test_a_program_that_failed_ends(script, status):
    script = script.replace("m = start()", "m = pccl.MasterNode('127.0.0.1:0'); m.run(); print(m.port, flush=True)")
    done = subprocess.run([sys.executable, "-c", "import pccl, sys\n" + script], timeout=PATIENCE_S,
                          capture_output=True,
                          text=True)
    assert done.returncode == status, done.stderr
    assert ("caught" in done.stdout) == (status == 0)


def test_a_wire_mode_is_checked_and_told():
    key = "5a" * 32
    with pytest.raises(PCCLError, match="`integrity`"):
        MasterNode("127.0.0.1:0", run_key=key, wire="plain")
    with MasterNode("127.0.0.1:0", run_key=key, wire="integrity") as master:
        with Communicator(f"127.0.0.1:{master.port}", first_ports=(0, 0), run_key=key) as comm:
            comm.connect()
            assert comm.status()["wire"] == "integrity"


def test_runs_with_one_key_are_told_apart_by_their_names():
    key = "5a" * 32
    with MasterNode("127.0.0.1:0", run_key=key, run_name="A") as master:
        address = f"127.0.0.1:{master.port}"
        for settings in ({}, {"run_name": "B"}):
            with Communicator(address, first_ports=(0, 0), run_key=key, **settings) as comm:
                with pytest.raises(PCCLError, match="the name of the run, is another one"):
                    comm.connect()
        for place, settings in ((address, {"run_name": "A"}), (f"pccl://{address}/A", {})):
            with Communicator(place, first_ports=(0, 0), run_key=key, **settings) as comm:
                comm.connect()


def test_settings_reach_the_master():
    with MasterNode("127.0.0.1:0", min_world_size=2, peer_timeout=20, straggler_timeout=600, edge_timeout=5) as master:
        with Communicator(f"127.0.0.1:{master.port}", first_ports=(0, 0), name="first-peer") as comm:
            comm.connect()
            assert comm.world().min_world_size == 2 and comm.name == "first-peer"
            assert "first-peer" in str(comm.status())


#: A master that others may stand by for, until it is killed.
FIRST = """
import pccl, time
master = pccl.MasterNode("127.0.0.1:0", accept_standbys=True)
master.run()
print(master.port, flush=True)
master.wait()
"""


def test_a_standby_in_a_peer_takes_over():
    first = subprocess.Popen([sys.executable, "-c", FIRST], stdout=subprocess.PIPE, text=True)
    place = f"127.0.0.1:{first.stdout.readline().strip()}"
    with MasterNode("127.0.0.1:0", standby_of=place, advertised_host="127.0.0.1") as standby:
        # The first place of the list does not act.
        with Communicator(f"127.0.0.1:{standby.port},{place}", first_ports=(0, 0)) as comm:
            comm.connect()
            deadline = time.monotonic() + PATIENCE_S
            while not comm.status()["lead"]["standbys"]:
                assert time.monotonic() < deadline
            first.kill()
            first.wait(PATIENCE_S)
            first.stdout.close()
            comm.update_topology()
            lead = comm.status()["lead"]
            assert lead["acts"] and lead["term"] == 1 and not lead["standbys"]


def test_the_first_of_a_list_of_masters_begins_a_run_and_ends_it():
    places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    masters = ",".join(places)
    with MasterNode(places[1], masters=masters, me=places[1]) as second, \
            MasterNode(places[0], masters=masters) as first, Communicator(masters, first_ports=(0, 0)) as comm:
        comm.connect()
        deadline = time.monotonic() + PATIENCE_S
        while comm.status()["lead"]["standbys"] != [places[1]]:
            assert time.monotonic() < deadline
        first.end_run()
        first.wait()
        with pytest.raises(PCCLError) as failure:
            comm.update_topology()
        # With `interrupt` the other one would have gone on.
        assert failure.value.cause == "MasterStopping"
        second.end_run()
        second.wait()


def test_a_list_of_masters_is_checked():
    with pytest.raises(PCCLError, match="does not have this one"):
        MasterNode("127.0.0.1:0", masters="127.0.0.1,127.0.0.2", me="127.0.0.3").run()
    with pytest.raises(PCCLError, match="use either of the two"):
        MasterNode("127.0.0.1:0", masters="127.0.0.1", standby_of="127.0.0.2:48148").run()
    with pytest.raises(PCCLError, match="needs a list"):
        MasterNode("127.0.0.1:0", me="127.0.0.1").run()
    with pytest.raises(TypeError, match="trusted_seeders"):
        MasterNode("127.0.0.1:0", trusted_seeders="vault")


def test_a_place_to_stand_by_for_is_checked():
    with pytest.raises(PCCLError, match="stand by"):
        MasterNode("127.0.0.1:0", standby_of="nowhere:port").run()
