"""Creates the archives: a few hundred log pages per task, one of which contains the fact."""

import random
from typing import Any

ANSWERS = {
    "harbour-log": ("harbour", "Aldebaran"),
    "railway-log": ("railway", "Dovetail"),
    "weather-log": ("weather", "Marigold"),
}
PAGES = 400
WORDS = [
    "wind",
    "tide",
    "cargo",
    "signal",
    "lantern",
    "timetable",
    "pressure",
    "crew",
    "ledger",
    "morning",
    "platform",
    "buoy",
    "delay",
    "cloud",
]


def archive(task_id: str) -> dict[str, Any]:
    """The execution info of a task, the same on every machine."""
    topic, answer = ANSWERS[task_id]
    draw = random.Random(task_id)  # noqa: S311  # reproducible filler text
    documents = {f"{topic}-{page:03}": " ".join(draw.choices(WORDS, k=60)) for page in range(PAGES)}
    page = f"{topic}-{draw.randrange(PAGES):03}"
    documents[page] += f". The inspector signed the book as {answer}."
    return {
        "question": f"Under which name did the inspector sign the {topic} book?",
        "answer": answer,
        "documents": documents,
    }
