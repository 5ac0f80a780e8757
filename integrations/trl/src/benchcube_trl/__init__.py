"""Packages that are served (`bench serve ors`) as environments of TRL's trainers.

    served = ServedPackages(url, token=token)
    GRPOTrainer(model=..., train_dataset=served.dataset(), environment_factory=served.environment)

The environment owns its reward. Work without a score has the reward None, which TRL leaves out of means and advantages;
with `strict` it is raised. It is never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchflow.trainers.client import CallRefused, Client, Session, Task, Unscored

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["PackageEnvironment", "ServedPackages"]

_ROW = ("environment", "split", "index", "id", "digest")


class ServedPackages:
    """The packages of a server, for one trainer; `close` ends what is left of them."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        split: str | None = None,
        environment: str | None = None,
        strict: bool = False,
    ) -> None:
        """All splits of the server's default environment, unless others are named."""
        self.client = Client(url, token=token)
        self._split = split
        self._environment = environment
        self._strict = strict

    def rows(self) -> list[dict[str, Any]]:
        """A row for each task. Its prompt is empty: `reset` appends the one of the package."""
        tasks = self.client.tasks(self._split, self._environment)
        return [{"prompt": [{"role": "user", "content": ""}], **task.row()} for task in tasks]

    def dataset(self) -> Dataset:
        """The rows as the `train_dataset` of a trainer."""
        from datasets import Dataset

        return Dataset.from_list(self.rows())

    def environment(self) -> PackageEnvironment:
        """A new environment: this method is the `environment_factory`."""
        return PackageEnvironment(self.client, strict=self._strict)

    def close(self) -> None:
        self.client.close()


class PackageEnvironment:
    """One rollout at a time. Public methods are the tools of the model."""

    def __init__(self, client: Client, *, strict: bool = False) -> None:
        self._client = client
        self._strict = strict
        self._session: Session | None = None
        self._unscored: Unscored | None = None

    def reset(self, **row: Any) -> str:
        """Start the task of a row and return its prompt."""
        self._close()
        self._unscored = None
        try:
            self._session = self._client.open(Task(**{name: row[name] for name in _ROW}))
        except Unscored as error:
            if self._strict:
                raise
            self._unscored = error
            return "The environment of this task could not start."
        return self._session.prompt

    def bash(self, command: str) -> str:
        """Run a command in a new shell in the working folder; returns its output and exit code.

        Args:
            command: The command to run.

        Returns:
            What the command printed.
        """
        return self._call("bash", command=command)

    def read_file(self, path: str) -> str:
        """Read a text file.

        Args:
            path: The file; absolute, or relative to the working folder.

        Returns:
            The text.
        """
        return self._call("read_file", path=path)

    def write_file(self, path: str, text: str) -> str:
        """Write a text to a file, replacing what was there.

        Args:
            path: The file; absolute, or relative to the working folder.
            text: The complete text.

        Returns:
            A confirmation.
        """
        return self._call("write_file", path=path, text=text)

    def submit(self) -> str:
        """Say that you are done: your work is then scored. Another instruction may follow as the result.

        Returns:
            The next instruction, or that the episode is over.
        """
        return self._call("submit")

    def get_reward(self) -> float | None:
        """The reward of the work as it is, submitted if it was not; None (or raised) if it has no score."""
        session, self._session = self._session, None
        try:
            if self._unscored is not None:
                raise self._unscored
            if session is None:
                raise RuntimeError("get_reward() needs a reset() before it.")
            return session.score()
        except Unscored:
            if self._strict:
                raise
            return None
        finally:
            if session is not None:
                session.close()

    def _call(self, name: str, **arguments: Any) -> str:
        if self._session is None:
            return "The episode is over."
        try:
            return self._session.call(name, **arguments).text
        except CallRefused as refused:
            return f"error: {refused}"
        except Unscored as error:
            self._unscored = error
            return f"The environment is lost: {error}"

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
