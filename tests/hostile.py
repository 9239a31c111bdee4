"""Submissions that break out, stay, go out, read, flood and exhaust: sources by name, and how each is to end.

In a source, `no(call)` asserts that a call fails, and secret(), PORT, UDP, ABSTRACT and FOLDER are what the grader's
side has of its own: a word in its environment, sockets that it listens at, and a folder that everybody may write to.
"""

PRELUDE = """
import os, sys, time, ctypes, socket, signal, threading, subprocess, errno
libc = ctypes.CDLL(None, use_errno=True)
ON_ARM = os.uname().machine == 'aarch64'
CLONE = 220 if ON_ARM else 56
NUMBERS = (280, 282, 241, 219, 104, 273, 265) if ON_ARM else (321, 323, 298, 250, 246, 313, 304)
def no(call, *args):
    try:
        got = call(*args)
    except BaseException:
        return
    assert isinstance(got, int) and not isinstance(got, bool) and got < 0, f'{call} gave {got!r}'
"""

# Each: (source, how the cell may end). None after it: the session goes on and answers as an honest one does.
OK, ERROR, TIMEOUT, MEMORY, DIED, OUTPUT = "ok", "error", "timeout", "memory", "died", "output-limit"
LOOPS = {
    "a loop": ("while True: pass", {TIMEOUT}),
    "a loop that catches everything": (
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        {TIMEOUT},
    ),
    "a loop in compiled code": ("sum(range(10**13))", {TIMEOUT}),
    "a sleep": ("time.sleep(1e6)", {TIMEOUT}),
    "a loop that ignores every signal": (
        "for n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n  except (OSError, ValueError): pass\n"
        "while True: pass",
        {TIMEOUT},
    ),
    "a lock that nobody opens": ("threading.Lock().acquire() and threading.Event().wait()", {TIMEOUT}),
    "waiting for input": ("input('? ')", {ERROR}),
    "endless recursion": ("def f(): return f()\nf()", {ERROR}),
    "a stopped process": ("os.kill(os.getpid(), signal.SIGSTOP)", {TIMEOUT}),
}
EXITS = {
    "sys.exit": ("sys.exit(0)", {ERROR}),
    "exit()": ("exit()", {ERROR}),
    "os._exit": ("os._exit(0)", {DIED}),
    "SIGKILL to itself": ("os.kill(os.getpid(), 9)", {DIED}),
    "SIGKILL to everybody": ("os.kill(-1, 9)", {ERROR, DIED}),
    "SIGKILL to its parent": ("os.kill(os.getppid(), 9)", {DIED}),
    "SIGKILL to process 1": ("for n in range(1, 65): os.kill(1, n)", {OK}),
    "SIGKILL to every number": (
        "for n in range(1, 40000):\n  try: n != os.getpid() and os.kill(n, 9)\n  except OSError: pass",
        {OK},
    ),
    "SIGKILL to its group": ("os.killpg(0, 9)", {DIED}),
    "abort": ("os.abort()", {DIED}),
    "a bad pointer": ("ctypes.string_at(0)", {DIED}),
    "another program": ("os.execv('/bin/true', ['true'])", {DIED}),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", {ERROR}),
    "an alarm": ("signal.alarm(1)\ntime.sleep(1e6)", {DIED, TIMEOUT}),
    "a source that is none": ("x = 1 \x00 y", {ERROR}),
    "a fork that returns": ("os.fork()", {OK}),
}
MEMORY_KINDS = {
    "a list without end": ("x = []\nwhile True: x.append(bytes(10**6))", {MEMORY}),
    "an array too large": ("import numpy\nnumpy.ones(10**11)", {MEMORY}),
    "a tensor too large": ("import torch\ntorch.ones(10**11)", {MEMORY}),
    "many tensors": ("import torch\nx = []\nwhile True: x.append(torch.ones(10**6))", {MEMORY}),
    "shared memory of nobody": (
        "import mmap\nfor _ in range(9):\n  m = mmap.mmap(-1, 10**8)\n  m[:] = b'x' * 10**8\n  globals()[f'm{_}'] = m",
        {MEMORY, TIMEOUT},
    ),
    "a file in memory": ("no(os.memfd_create, 'x')", {OK}),
    "memory in many processes": (
        "for _ in range(8):\n  if not os.fork():\n    x = b'x' * (150 * 10**6)\n    time.sleep(99)\ntime.sleep(99)",
        {MEMORY, TIMEOUT},
    ),
    "System V segments": ("no(libc.shmget, 0, 10**8, 0o1600)\nno(libc.msgget, 0, 0o1600)", {OK}),
    "locked memory": ("no(libc.mlockall, 3)", {OK}),
    "memory in sockets": (
        "x = [socket.socketpair() for _ in range(50)]\nfor pair in x:\n  for s in pair:\n    s.setblocking(False)\n"
        "    try:\n      while True: s.send(bytes(9999))\n    except BlockingIOError: pass",
        {OK},
    ),
    "memory in pipes": (
        "import fcntl\nx = [os.pipe() for _ in range(50)]\nfor _, w in x:\n  os.set_blocking(w, False)\n"
        "  try:\n    fcntl.fcntl(w, 1031, 1 << 20)\n  except OSError: pass\n  os.write(w, bytes(1 << 20))",
        {OK},
    ),
    "a string doubled": ("x = 'x' * 10**6\nwhile True: x += x", {MEMORY}),
}
PROCESSES = {
    "a fork bomb": ("while True: os.fork()", {ERROR, TIMEOUT}),
    "a fork bomb that catches": ("while True:\n  try: os.fork()\n  except BaseException: pass", {TIMEOUT}),
    "a shell's fork bomb": ("subprocess.run(['sh', '-c', 'f() { f | f & }; f; sleep 99'])", {OK, ERROR, TIMEOUT}),
    "threads without end": (
        "while True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        {ERROR, MEMORY},
    ),
    "a daemon": (
        "if not os.fork():\n  os.setsid()\n  if not os.fork(): time.sleep(999)\n  os._exit(0)",
        {OK},
    ),
    "a child that ignores signals": (
        "code = 'import signal as s, time; s.signal(15, s.SIG_IGN); time.sleep(999)'\n"
        "subprocess.Popen([sys.executable, '-c', code])",
        {OK},
    ),
    "zombies": ("for _ in range(10):\n  if not os.fork(): os._exit(0)", {OK}),
}
FILES = {
    "a large file": ("open('/tmp/x', 'wb').write(bytes(20 << 20))", {ERROR}),
    "a full disk": ("for n in range(99): open(f'/tmp/{n}', 'wb').write(bytes(9 << 20))", {ERROR}),
    "a full /dev/shm": ("for n in range(99): open(f'/dev/shm/{n}', 'wb').write(bytes(9 << 20))", {ERROR}),
    "a full home": ("for n in range(99): open(f'/home/learner/{n}', 'wb').write(bytes(9 << 20))", {ERROR}),
    "deep folders": (
        "for _ in range(900):\n  os.mkdir('x' * 99)\n  os.chdir('x' * 99)",
        {OK},
    ),
    "files without end": ("for n in range(10**6): os.mknod(f'/tmp/{n}')", {ERROR, TIMEOUT}),
    "descriptors without end": ("x = [open('/dev/null') for _ in range(9999)]", {ERROR}),
    "writing where all can read": (
        "places = '/ /usr /etc /dev /opt /opt/labkit/labkit/checks /stage /home /proc /sys'.split()\n"
        "for place in (*places, os.path.dirname(os.__file__), *filter(None, sys.path)):\n"
        "  no(open, f'{place}/mine', 'w')\n  no(os.mkdir, f'{place}/mine2')\n  no(os.symlink, '/', f'{place}/mine3')",
        {OK},
    ),
    "changing what all can read": (
        "import torch, labkit\nfor file in (os.__file__, torch.__file__, labkit.__file__, '/bin/sh', sys.executable):\n"
        "  no(os.chmod, file, 0o777)\n  no(os.remove, file)\n  no(os.utime, file)\n  no(open, file, 'r+b')\n"
        "no(os.chmod, '/dev/null', 0)\nno(os.remove, '/dev/null')",
        {OK},
    ),
    "start-up files": (
        "for place in ('/usr/lib/python3/dist-packages', *sys.path):\n"
        "  place and no(open, f'{place}/sitecustomize.py', 'w')\n"
        "os.makedirs(os.path.expanduser('~/.ipython/profile_default/startup'))\n"
        "open(os.path.expanduser('~/.ipython/profile_default/startup/x.py'), 'w').write('1/0')\n"
        "open('torch.py', 'w').write('1/0')\nopen('/tmp/torch.py', 'w').write('1/0')",
        {OK},
    ),
    "the grader's folder": ("no(open, FOLDER + '/mine', 'w')\nno(os.listdir, FOLDER)", {OK}),
    "a path with ..": ("no(open, '/tmp/../../../../../..' + FOLDER + '/mine', 'w')", {OK}),
    "a link out": ("os.symlink(FOLDER, '/tmp/out')\nno(open, '/tmp/out/mine', 'w')", {OK}),
    "a device": ("no(os.mknod, '/tmp/a', 0o60666, os.makedev(254, 0))\nno(os.mknod, '/tmp/b', 0o20666, 259)", {OK}),
    "a program that changes its user": (
        "import shutil\nshutil.copy('/bin/sh', '/tmp/sh')\nos.chmod('/tmp/sh', 0o6755)\n"
        "assert subprocess.run(['/tmp/sh', '-pc', 'test $(id -u) = 1000']).returncode == 0\nno(os.setuid, 0)",
        {OK},
    ),
}
KERNEL = {
    "mount": ("no(libc.mount, b'tmpfs', b'/tmp', b'tmpfs', 0, None)\nno(libc.umount2, b'/tmp', 2)", {OK}),
    "remount": ("no(libc.mount, b'none', b'/opt/labkit/labkit', None, 32 | 4096, None)", {OK}),
    "uncovering the checks": ("no(libc.umount2, b'/opt/labkit/labkit/checks', 2)", {OK}),
    "new namespaces": ("for bit in (0x10000000, 0x20000, 0x40000000, 0x20000000): no(libc.unshare, bit)", {OK}),
    "new namespaces by clone": (
        "no(libc.syscall, CLONE, 0x10000000 | 17, 0, 0, 0, 0)\nno(libc.syscall, 435, b'x' * 88, 88)",
        {OK},
    ),
    "other namespaces": ("no(libc.setns, os.open('/proc/self/ns/net', 0), 0)", {OK}),
    "chroot": ("no(libc.chroot, b'/tmp')\nno(libc.pivot_root, b'/tmp', b'/tmp')", {OK}),
    "ptrace": ("no(libc.ptrace, 16, 1, 0, 0)\nno(libc.ptrace, 0, 0, 0, 0)", {OK}),
    "the memory of process 1": (
        "no(open, '/proc/1/mem', 'rb')\nno(os.readlink, '/proc/1/exe')\nno(os.listdir, '/proc/1/fd')\n"
        "no(os.listdir, '/proc/1/root')\nno(libc.process_vm_readv, 1, 0, 0, 0, 0, 0)",
        {OK},
    ),
    "rare doors of the kernel": (
        "for number in (*NUMBERS, 425, 438, 447): no(libc.syscall, number, 0, 0, 0, 0, 0)",
        {OK},
    ),
    "calls of the other set": ("libc.syscall(0x40000000 + 39)\nassert not ON_ARM", {DIED, ERROR}),
    "calls of another architecture": (
        "import mmap\nassert not ON_ARM\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
        {DIED, ERROR},
    ),
    "a program that asks for more": (
        "status = subprocess.run(['/bin/su', '-c', 'id'], capture_output=True).returncode\nassert status != 0\n"
        "assert subprocess.run(['unshare', '-r', 'true'], capture_output=True).returncode != 0\n"
        "assert subprocess.run(['mount', '-t', 'tmpfs', 'x', '/tmp'], capture_output=True).returncode != 0",
        {OK},
    ),
    "raising its limits": (
        "import resource\nfor name in ('AS', 'NPROC', 'FSIZE', 'NOFILE', 'CORE'):\n"
        "  no(resource.setrlimit, getattr(resource, f'RLIMIT_{name}'), (-1, -1))",
        {OK},
    ),
    "settings of the kernel": (
        "for name in ('kernel/hostname', 'kernel/core_pattern', 'net/ipv4/ip_forward', 'vm/drop_caches'):\n"
        "  no(open, f'/proc/sys/{name}', 'w')\nno(open, '/proc/sysrq-trigger', 'w')\nno(socket.sethostname, 'mine')",
        {OK},
    ),
}
OUTPUT_KINDS = {
    "lines without end": ("while True: print('x' * 80)", {OUTPUT}),
    "short lines without end": ("while True: print()", {OUTPUT, TIMEOUT}),
    "one line without end": ("while True: print('x' * 10**5, end='')", {OUTPUT}),
    "bytes from below": ("while True: os.write(2, bytes(10**4))", {OUTPUT}),
    "output of another program": ("subprocess.run(['yes'])", {OUTPUT}),
    "output from a thread that stays": (
        "def noise():\n  while True: os.write(1, b'x' * 99); time.sleep(0.01)\n"
        "threading.Thread(target=noise, daemon=True).start()",
        {OK},
    ),
    "a value too long to show": ("x = 'x' * 10**7\nx", {OUTPUT, OK}),
    "bytes that are no text": ("os.write(1, bytes(range(256)) * 9)\nprint('\\ud800 \\x00 \\x1b[2J')", {OK}),
    "no output left": ("os.close(1); os.close(2)", {OK, ERROR}),
    "no descriptor left": ("os.closerange(0, 999)", {DIED}),
    "no socket left": (
        "for n in range(3, 99):\n  try: socket.socket(fileno=n).shutdown(2)\n  except OSError: pass",
        {DIED},
    ),
}
FORGED = {
    "noise on every descriptor": (
        "for n in range(3, 99):\n  try: os.write(n, b'noise' * 99)\n  except OSError: pass",
        {OK},
    ),
    "noise from a thread that stays": (
        "def noise():\n  while time.sleep(0.001) is None:\n    for n in range(3, 99):\n"
        "      try: os.write(n, b'noise')\n      except OSError: pass\n"
        "threading.Thread(target=noise, daemon=True).start()\ntime.sleep(0.1)",
        {OK},
    ),
    "noise without end": (
        "while True:\n  for n in range(3, 99):\n    try: os.write(n, b'noise' * 999)\n    except OSError: pass",
        {OUTPUT},
    ),
    "forged messages": (
        "import gc\nfrom labkit.grading import frames\n"
        "mine = next(o for o in gc.get_objects() if type(o).__name__ == 'Harness') if gc.unfreeze() is None else 0\n"
        "for body in (b'null', b'[1', b'[' * 9999, b'[\"a\", \"b\", \"c\"]', b'\\xff'):\n"
        "  mine._link.sendall(frames.packed(mine._token, b'r', body))",
        None,  # whatever it says of its own cell
    ),
    "a message too long": (
        "import gc\nfrom labkit.grading import frames\ngc.unfreeze()\n"
        "mine = next(o for o in gc.get_objects() if type(o).__name__ == 'Harness')\n"
        "mine._link.sendall(frames.packed(mine._token, b'r', b'')[:-8] + b'\\xff' * 8 + bytes(99))",
        {OUTPUT},
    ),
    "messages that it keeps": (
        "for n in range(3, 99):\n  try: socket.socket(fileno=n).recv(9)\n  except OSError: pass",
        {TIMEOUT},
    ),
}
NETWORK = {
    "the grader's host": (
        "for place in (('127.0.0.1', PORT), ('10.0.0.1', 80)): no(socket.create_connection, place, 0.5)",
        {OK},
    ),
    "a datagram": (
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.sendto(b'x', ('127.0.0.1', UDP))\n"
        "no(s.sendto, b'x', ('8.8.8.8', 53))",
        {OK},
    ),
    "a name": ("no(socket.getaddrinfo, 'example.org', 80)", {OK}),
    "an abstract socket": ("no(socket.socket(socket.AF_UNIX).connect, '\\0' + ABSTRACT)", {OK}),
    "a socket in a folder": ("no(socket.socket(socket.AF_UNIX).connect, FOLDER + '/socket')", {OK}),
    "rare families": (
        "for family in (17, 38, 40, 31, 29, 44): no(socket.socket, family, socket.SOCK_RAW)\n"
        "no(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)\n"
        "for kind in (6, 9, 12, 15, 16, 21): no(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, kind)\n"
        "assert socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) and socket.if_nameindex()",
        {OK},
    ),
    "a server that stays": (
        "s = socket.socket(socket.AF_UNIX)\ns.bind('\\0stays')\ns.listen()\nif not os.fork(): time.sleep(999)",
        {OK},
    ),
}
READING = {
    "who else is there": ("assert len([n for n in os.listdir('/proc') if n.isdigit()]) == 2", {OK}),
    "environments": (
        "import glob\nfor file in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n"
        "  try: assert secret().encode() not in open(file, 'rb').read()\n  except OSError: pass",
        {OK},
    ),
    "solutions and checks": (
        "import labkit\nassert not [f for f in os.listdir(os.path.dirname(labkit.__file__) + '/checks')]\n"
        "for folder in ('/root', '/mnt', '/srv', '/var', '/opt/labkit/solutions', '/opt/labkit/tests'):\n"
        "  no(os.listdir, folder)\n"
        "assert os.listdir('/opt/labkit') == ['labkit']\nassert os.listdir('/home') == ['learner']",
        {OK},
    ),
    "the checks as modules": ("def load():\n  import labkit.checks.nb01\nno(load)", {OK}),
    "frames above": (
        "f = sys._getframe()\nwhile f:\n  assert secret() not in repr(dict(f.f_locals))\n  f = f.f_back",
        {OK},
    ),
    "what others left": (
        "for place in ('/tmp', '/dev/shm', '/home/learner'): assert os.listdir(place) == [], os.listdir(place)",
        {OK},
    ),
    "the kernel's log": ("no(open, '/dev/kmsg')\nno(libc.klogctl, 3, ctypes.create_string_buffer(99), 99)", {OK}),
}
STAYING = {
    "patched libraries": (
        "import torch, builtins, json, struct\ntorch.equal = torch.add = torch.Tensor.__eq__ = lambda *a, **k: True\n"
        "builtins.print = None\nsys.modules['labkit.grading.wire'] = None",
        {OK},
    ),
    "work at the end": ("import atexit\natexit.register(lambda: time.sleep(999))", {OK}),
    "a __del__ that hangs": ("class A:\n  def __del__(self): time.sleep(999)\nx = A()", {OK}),
    "a thread that stays": ("threading.Thread(target=time.sleep, args=(999,)).start()", {OK}),
    "a timer": ("signal.signal(signal.SIGALRM, lambda *_: 1 / 0)\nsignal.setitimer(0, 0.2, 0.001)", None),
    "a trace function": ("sys.settrace(lambda *_: 1 / 0)\nthreading.settrace(lambda *_: 1 / 0)", None),
    "a hook on imports": ("sys.meta_path.insert(0, type('A', (), {'find_spec': lambda *a: os._exit(3)})())", None),
    "a lowered recursion limit": ("sys.setrecursionlimit(60)", None),
}
KINDS = {
    **LOOPS,
    **EXITS,
    **MEMORY_KINDS,
    **PROCESSES,
    **FILES,
    **KERNEL,
    **OUTPUT_KINDS,
    **FORGED,
    **NETWORK,
    **READING,
    **STAYING,
}
SILENT = {"deep folders", "patched libraries", "a server that stays", "no output left", "a shell's fork bomb"}
# SILENT: no answer need come. CALLS: functions that a call meets, and how the call may end.
CALLS = {
    "a loop": ("while True: pass", {TIMEOUT}),
    "an end": ("os._exit(0)", {DIED}),
    "an exit": ("sys.exit(0)", {"SystemExit"}),
    "memory": ("return [0] * 10**12", {"MemoryError", MEMORY}),
    "output": ("while True: print('x' * 999)", {OUTPUT}),
    "a long answer": ("import torch\n    return torch.ones(10**7)", {OUTPUT}),
    "a deep answer": ("y = []\n    for _ in range(10**5): y = [y]\n    return y", {"WireError", "RecursionError"}),
    "an answer that lies": ("class A(int): __eq__ = lambda *_: True\n    return A(7)", {7, "an object", OK}),
    "a fork": ("os.fork()\n    return 2 * x", {42}),
    "an object that ends at its look": ("class A: __class__ = property(lambda _: os._exit(1))\n    return A()", None),
    "an error that hangs": ("class A(Exception): __str__ = lambda _: time.sleep(99)\n    raise A", {TIMEOUT}),
}
