# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Code in processes that have imported torch and transformers, but neither PEFT nor fedpeft: most of a start saved."""

import json
import os
import subprocess
from collections.abc import Sequence

from warm_python import FRESH

FORKING = """
import io, json, os, sys, traceback, warnings
import torch, transformers.modeling_utils, transformers.models.vilt.modeling_vilt, transformers.models.bert
warnings.simplefilter("ignore")
assert not {"fedpeft", "peft"} & sys.modules.keys()
for line in sys.stdin:
    request = json.loads(line)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        error = ""
        sys.path[:0], sys.argv[1:] = request["path"], request["arguments"]
        sys.stdin, sys.stdout = io.StringIO(), sys.stderr
        try:
            exec(request["code"], {"__name__": "__main__"})
        except BaseException:
            error = traceback.format_exc()
        with open(write, "w") as pipe:
            pipe.write(json.dumps(error))
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        print(pipe.read() or '"the process has died"', flush=True)
    os.waitpid(child, 0)
"""


class FreshProcesses:
    """Processes that run some code each, forked from one that has the imports."""

    def __init__(self) -> None:
        command = [os.environ[FRESH], "-c", FORKING]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, code: str, *arguments: str, path: Sequence[str] = ()) -> str:
        """Run code in a new process and return its traceback, empty if there is none.

        Args:
            code: as of a script.
            arguments: `sys.argv[1:]`.
            path: folders that come first in `sys.path`.
        """
        request = {"code": code, "arguments": arguments, "path": path}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process that forks."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)
