"""The sandbox with submissions that mean harm: each ends as it should, with no trace outside or afterwards."""

import os
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

import hostile
import pytest
from boxes import HONEST, SMALL, WHY_NOT, asked

import labkit
from labkit.grading import box

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@dataclass
class Ground:
    """A box, and what of the grader's side a submission might reach."""

    box: box.Box
    before: str
    folder: Path
    listeners: list[socket.socket]
    n_processes: int = 0

    def seen(self) -> list[str]:
        """What has changed or arrived outside."""
        heard = []
        for one in self.listeners:
            try:
                one.recv(1) if one.type == socket.SOCK_DGRAM else one.accept()
                heard.append(f"a packet at {one.getsockname()}")
            except BlockingIOError:
                pass
        mine = sorted(path.name for path in self.folder.iterdir())
        return heard + ([] if mine == ["socket"] else mine)

    def n_left(self) -> int:
        """The processes of the box, once the next world stands."""
        until_s = time.monotonic() + 5.0
        while (count := len(self.box.pids())) != self.n_processes and time.monotonic() < until_s:
            time.sleep(0.01)
        return count


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    secret = f"secret-{os.getpid()}-{os.urandom(4).hex()}"
    os.environ["GRADERS_SECRET"] = secret
    folder = tmp_path_factory.mktemp("open")
    folder.chmod(0o777)
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    abstract, local = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind("")  # the system chooses a name
    local.bind(str(folder / "socket"))
    listeners = [tcp, udp, abstract, local]
    for one in listeners:
        one.setblocking(False)
        if one is not udp:
            one.listen()
    names = {
        "TERCES": secret[::-1],
        "ABSTRACT": abstract.getsockname()[1:].decode(),
        "PORT": tcp.getsockname()[1],
        "UDP": udp.getsockname()[1],
    }
    names["FOLDER"] = str(folder)
    before = hostile.PRELUDE + "".join(f"{name} = {value!r}\n" for name, value in names.items())
    before += "secret = lambda: TERCES[::-1]\n"
    try:
        with box.Box(replace(SMALL, cell_s=1.0)) as one:
            found = Ground(one, before, folder, listeners)
            found.n_processes = len(one.pids())
            yield found
    finally:
        os.environ.pop("GRADERS_SECRET")
        for one in listeners:
            one.close()


@pytest.fixture(autouse=True)
def _nothing_happens_outside(ground):
    """After each test: no process left, nothing changed or heard outside, and the next submission is graded right."""
    package = Path(labkit.__file__).parent
    before = sorted(path.name for path in package.iterdir())
    yield
    assert ground.n_left() == ground.n_processes
    assert ground.seen() == []
    assert sorted(path.name for path in package.iterdir()) == before
    with ground.box.run([HONEST]) as session:
        assert (session.outcomes[0].status, asked(session)) == ("ok", 42)


@pytest.mark.parametrize("name", hostile.KINDS)
def test_a_hostile_cell(ground, name):
    source, ends = hostile.KINDS[name]
    with ground.box.run([HONEST, ("before", ground.before), ("hostile", source)]) as session:
        found = session.outcomes[-1]
        assert [one.status for one in session.outcomes[:2]] == ["ok", "ok"]
        assert ends is None or found.status in ends, found
        answer = asked(session, timeout_s=1.0)
        assert answer == 42 or ends != {"ok"} or name in hostile.SILENT, answer
    assert session.pids() == []


@pytest.mark.parametrize("name", hostile.CALLS)
def test_a_hostile_function(ground, name):
    body, ends = hostile.CALLS[name]
    with ground.box.run([("before", ground.before), ("f", f"def double(x):\n    {body}\n")]) as session:
        assert session.outcomes[-1].status == "ok", session.outcomes
        answer = asked(session, timeout_s=1.0)
        assert ends is None or answer in ends, answer
    assert session.pids() == []


def test_a_box_is_read_only_from_the_first_session_to_the_last(ground):
    """Two sessions at once see neither files nor sockets of each other."""
    leaves = "import socket\nopen('/tmp/x', 'w').write('x')\nopen('/dev/shm/x', 'w').write('x')\n"
    leaves += "s = socket.socket(socket.AF_UNIX)\ns.bind('\\0here')\ns.listen()"
    looks = "import os, socket\nassert os.listdir('/tmp') == os.listdir('/dev/shm') == []\n"
    looks += "try: socket.socket(socket.AF_UNIX).connect('\\0here')\nexcept OSError: pass\nelse: 1 / 0"
    with ground.box.run([("a", leaves)]) as one, ground.box.run([("b", looks)]) as other:
        assert [one.outcomes[0].status, other.outcomes[0].status] == ["ok", "ok"], other.outcomes


def test_a_process_that_is_over_the_limit_costs_its_session_only(ground):
    with ground.box.run([HONEST]) as one:
        with ground.box.run([("loop", "while True: pass")]) as other:
            assert other.over == "timeout"
        assert asked(one) == 42
