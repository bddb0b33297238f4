"""What a submission does in a program of its own, where no audit hook sees what it calls in C."""

import functools
import json
import subprocess
import sys

_CODE = """
import importlib, json, sys
module, name, arguments = json.loads(sys.argv[1])
print(json.dumps(getattr(importlib.import_module(module), name).__wrapped__(**arguments)))
"""


def in_a_program(function):
    """`function` of arguments and results that JSON has."""

    @functools.wraps(function)
    def run(**arguments):
        what = json.dumps([function.__module__, function.__name__, arguments])
        ended = subprocess.run([sys.executable, "-c", _CODE, what], capture_output=True, text=True, check=True)
        return json.loads(ended.stdout)

    return run
