"""Asks the agent's parser, in a process of its own, and writes the share of right answers per criterion."""

import json
import subprocess
import sys
from pathlib import Path

FORMS = {"90s": 90, "15m": 900, "2h": 7200, "1h30m": 5400, " 1H1m1S ": 3661, "0s": 0, "10m5s": 605}
ERRORS = ["", " ", "5", "h", "1x", "1m1h", "1s1s", "-1s", "1.5h", "1 h", "m5"]
ASK = """
import json, sys
sys.path.insert(0, "/app")
from duration import seconds
answers = {}
for text in json.load(sys.stdin):
    try:
        answers[text] = seconds(text)
    except ValueError:
        answers[text] = "ValueError"
    except Exception as error:
        answers[text] = type(error).__name__
print(json.dumps(answers))
"""


def ask(texts: list[str]) -> dict[str, object]:
    command = [sys.executable, "-I", "-c", ASK]
    finished = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=20)
    try:
        return json.loads(finished.stdout)
    except ValueError:
        return {}


forms, errors = ask(list(FORMS)), ask(ERRORS)
right = sum(forms.get(text) == value for text, value in FORMS.items())
refused = sum(errors.get(text) == "ValueError" for text in ERRORS)
metrics = {"forms": right == len(FORMS), "errors": refused == len(ERRORS)}
Path("/logs/verifier/reward.json").write_text(json.dumps({"metrics": {name: float(ok) for name, ok in metrics.items()}}))
