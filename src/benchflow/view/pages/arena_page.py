"""The arena of a rollout: who played which role, a picture of who talks to whom, and the exchange by pages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchflow.evaluation.summary import player_name
from benchflow.record import ArenaMessage, ArenaPart, ArenaRole, MessagePart, MessageParts, Result, RolloutFolder
from benchflow.record.reading.arena_exchange import ExchangePage, Talk, exchange_page, message_at, read_talk
from benchflow.view.conversation_pages import arguments_text, place_of
from benchflow.view.known_jobs import Missing
from benchflow.view.page_addresses import Fields, address
from benchflow.view.plain_text import one_line
from benchflow.view.viewer import Viewer

WIDTH: Final = 640
NODE: Final = (150, 46)
"""Width and height of a peer in the picture."""
MOST_PEERS: Final = 24
"""More are not drawn."""
_ALL: Final = 2_000
"""Messages of an exported file."""


@dataclass(frozen=True, slots=True)
class Node:
    """A peer in the picture."""

    name: str
    label: str
    note: str
    """Who plays it."""
    reward: float | None
    x: float
    y: float
    winner: bool = False
    assessor: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """Messages from one peer to another."""

    path: str
    width: float
    count: int
    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Who talks to whom."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    height: float
    whole: bool
    """Whether all messages were counted."""


@dataclass(frozen=True, slots=True)
class ArenaView:
    """What the page shows."""

    part: ArenaPart | None
    """None until the game has ended."""
    roles: tuple[tuple[str, ArenaRole, str], ...]
    """Role, what is recorded of it, and who played it."""
    picture: Picture
    exchange: ExchangePage


def has_arena(folder: RolloutFolder, result: Result | None) -> bool:
    """Whether a rollout is a game."""
    return (result is not None and result.arena is not None) or folder.a2a_messages.is_file()


def arena_of(folder: RolloutFolder, result: Result | None, fields: Fields, *, exported: bool) -> ArenaView:
    """The part of the exchange that the address asks for: `messages=OFFSET-NUMBER`."""
    part = result.arena if result is not None else None
    place = place_of(fields.one("messages"))
    shown = exchange_page(folder, limit=_ALL) if exported else exchange_page(folder, *place)
    roles = tuple((name, role, player_name(role)) for name, role in part.roles.items()) if part is not None else ()
    return ArenaView(part, roles, picture(read_talk(folder), part), shown)


def picture(talk: Talk, part: ArenaPart | None) -> Picture:
    """The roles in a row, the assessor above them; peers that nobody declared stand in the row too."""
    declared = list(part.roles) if part is not None else []
    others = [peer for peer in talk.peers if peer not in declared]
    # Only the assessor talks to everybody and has no role: of several without one, the first that spoke.
    above, more = others[:1], others[1:]
    row = [*declared, *more][:MOST_PEERS]
    per_row = min(4, max(1, len(row)))
    nodes = [_node(peer, WIDTH / 2, 40.0, part, assessor=True) for peer in above]
    for at, peer in enumerate(row):
        line, place = divmod(at, per_row)
        in_line = min(per_row, len(row) - line * per_row)
        x = WIDTH * (place + 0.5) / in_line
        nodes.append(_node(peer, x, (190.0 if above else 40.0) + 130.0 * line, part))
    height = max((node.y for node in nodes), default=0.0) + 45
    return Picture(
        tuple(nodes), tuple(_edges(talk, nodes)), height, talk.whole and len(declared) + len(more) <= MOST_PEERS
    )


def _node(peer: str, x: float, y: float, part: ArenaPart | None, *, assessor: bool = False) -> Node:
    role = part.roles.get(peer) if part is not None else None
    note = player_name(role) if role is not None else part.assessor if part is not None and assessor else ""
    reward = role.reward if role is not None else None
    winner = part is not None and part.winner == peer
    return Node(peer, one_line(peer, 18), one_line(note, 22), reward, x, y, winner, assessor)


def _edges(talk: Talk, nodes: Sequence[Node]) -> Iterator[Edge]:
    places = {node.name: node for node in nodes}
    most = max(talk.messages.values(), default=1)
    for (sender, receiver), count in talk.messages.items():
        start, end = places.get(sender), places.get(receiver)
        if start is None or end is None or start is end:
            continue
        width = 1.2 + 3.3 * math.log1p(count) / math.log1p(most)
        yield _edge(start, end, width, count, f"{sender} to {receiver}: {count}")


def _edge(start: Node, end: Node, width: float, count: int, words: str) -> Edge:
    """A curve that leaves to its left, so that the two directions are apart."""
    dx, dy = end.x - start.x, end.y - start.y
    length = math.hypot(dx, dy) or 1.0
    across = (dy / length, -dx / length)
    bend = 16 + length / 14
    middle = (start.x + dx / 2 + across[0] * bend, start.y + dy / 2 + across[1] * bend)
    begin, stop = _border(start, middle), _border(end, middle)
    path = f"M{begin[0]:.1f} {begin[1]:.1f} Q{middle[0]:.1f} {middle[1]:.1f} {stop[0]:.1f} {stop[1]:.1f}"
    label = (begin[0] + 2 * middle[0] + stop[0]) / 4, (begin[1] + 2 * middle[1] + stop[1]) / 4
    return Edge(path, round(width, 1), count, round(label[0], 1), round(label[1], 1), words)


def _border(node: Node, towards: tuple[float, float]) -> tuple[float, float]:
    """Where a line to a point leaves the box of a peer."""
    dx, dy = towards[0] - node.x, towards[1] - node.y
    share = min((NODE[0] / 2 + 3) / abs(dx) if dx else math.inf, (NODE[1] / 2 + 3) / abs(dy) if dy else math.inf, 1.0)
    return node.x + dx * share, node.y + dy * share


def part_text(part: MessagePart) -> str:
    """What a part of a message says, as far as it is in its line."""
    if part.kind == "text":
        return part.text or ""
    return "" if part.data is None else json.dumps(part.data, ensure_ascii=False, indent=2)


def part_facts(part: MessagePart) -> str:
    """What is known of a part besides its content."""
    return " · ".join(filter(None, (part.name, part.media_type, part.kind if part.kind != "text" else None)))


def message_page(viewer: Viewer, job_name: str, name: str, fields: Fields) -> str:
    """One part of a message, whole (`at`, `part`)."""
    folder = viewer.jobs.get(job_name).rollout(name)
    offset, number = place_of(fields.one("at"))
    message = message_at(folder, offset)
    index = fields.number("part", 0)
    if message is None or index >= len(message.parts):
        raise Missing("This message does not exist.", "The record may have been replaced.")
    here = address("job", job_name, "rollout", name)
    crumbs = [("Jobs", "/"), (job_name, address("job", job_name)), (name, here), (f"Message {number}", None)]
    return viewer.page("part.html", f"Message {number}", crumbs, text=_whole(folder, message, index))


def _whole(folder: RolloutFolder, message: ArenaMessage, index: int) -> str:
    try:
        content: Any = MessageParts(folder).content(message.parts[index])
    except (ValueError, RecursionError) as error:
        raise Missing(f"The message cannot be shown: {error}.", "") from error
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2)


def reward_words(meta: Mapping[str, Any]) -> str:
    """What an assessor said about a reward."""
    found = meta.get("reason") or meta.get("message") or meta.get("detail")
    return one_line(found, 300) if isinstance(found, str) else ""


ARENA_HELPERS: Final[Mapping[str, Any]] = {
    "part_text": part_text,
    "part_facts": part_facts,
    "reward_words": reward_words,
    "arguments_text": arguments_text,
    "node_box": NODE,
}
"""Functions and sizes that the template uses."""
