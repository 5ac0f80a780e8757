"""The command `docker` of a launch script: passes its words to the process that runs the script, and prints the answer.

It is run as a file, with the standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> int:
    address, words = sys.argv[1], sys.argv[2:]
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except OSError as error:
            sys.stderr.write(f"docker: the process that runs this script has ended ({error.strerror})\n")
            return 125
        connection.sendall(json.dumps({"words": words, "env": dict(os.environ)}).encode())
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    if not parts:
        sys.stderr.write("docker: no answer from the process that runs this script\n")
        return 125
    answer = json.loads(b"".join(parts))
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main())
