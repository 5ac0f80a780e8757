"""Searching and reading documents, and answering."""

from pydantic import Field

from cube.container import Container
from cube.tool import Tool, ToolConfig, tool_action


class ArchiveTool(Tool):
    """Reads documents. The task provides them; answers are kept for the evaluation."""

    def __init__(self, max_hits: int) -> None:
        self.max_hits = max_hits
        self.documents: dict[str, str] = {}
        self.answer: str | None = None

    def reset(self) -> None:
        self.answer = None

    @tool_action
    def search(self, words: str) -> list[str]:
        """Find documents that contain all the words.

        Args:
            words: words separated by spaces
        """
        wanted = words.lower().split()
        hits = [name for name, text in self.documents.items() if all(word in text.lower() for word in wanted)]
        return hits[: self.max_hits]

    @tool_action
    def read(self, document: str) -> str:
        """Read a document.

        Args:
            document: its name, as search lists it
        """
        if document not in self.documents:
            raise KeyError(f"Unknown document '{document}'.")
        return self.documents[document]

    @tool_action
    def submit(self, answer: str) -> None:
        """Answer the question; the last answer counts.

        Args:
            answer: the fact, without other words
        """
        self.answer = answer


class ArchiveToolConfig(ToolConfig):
    """The settings of the search."""

    max_hits: int = Field(default=5, ge=1)

    def make(self, container: Container | None = None) -> ArchiveTool:
        return ArchiveTool(self.max_hits)
