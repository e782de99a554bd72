"""Scripts that are recorded in a process of their own, and asked about there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parents[2]

_RUN = """
import json, os, sys, types
from opstep.debuggee.past.past import Past
folder, memory = sys.argv[1], int(sys.argv[2])
path = os.path.join(folder, "script.py")
past = Past.begin([folder], memory)
module = types.ModuleType("script")
module.__file__ = path
sys.modules["script"] = module
module.past = past
code = compile(open(path).read(), path, "exec")
try:
    exec(code, module.__dict__)
finally:
    past.end()

def line(text):
    return next(k for k, l in enumerate(open(path), 1) if text in l)

def times(text):
    return [p for p, _ in past.targets(path, line(text), most=1_000_000)][::-1]

def at(text, turn=-1):
    return times(text)[turn]

def back(text, condition=None, start=None):
    return past.move("reverseContinue", start, {path: {line(text): condition}})

def variables(position, frame=0, scope=0):
    reference = past.scopes(position, frame)[scope]["variablesReference"]
    return {v["name"]: v for v in past.variables(reference)}

def values(position, frame=0):
    return {n: v["value"] for n, v in variables(position, frame).items()}

def refused(expression, position):
    try:
        return f"gave {past.evaluate(expression, position)}"
    except Exception as error:
        return str(error)

scope = dict(globals())
exec(sys.argv[3], scope)
print(json.dumps(scope["answer"]))
"""


def ask(folder: Path, script: str, questions: str, memory: int = 64 << 20) -> Any:
    """Records a script and runs questions, which leave what they find in `answer`."""
    (folder / "script.py").write_text(dedent(script))
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    words = [sys.executable, "-c", _RUN, str(folder), str(memory), dedent(questions)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
