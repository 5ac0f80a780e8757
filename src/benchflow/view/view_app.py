"""The viewer as an application: which address leads to which page, and what a page that is not there says.

Every page is a function of the folder at this moment: there is nothing to log in to, to send or to change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from benchflow.errors import BenchflowError, UsageError
from benchflow.record.reading.atif_events import read_atif
from benchflow.view.http_guard import HttpGuard
from benchflow.view.known_jobs import KnownJobs, Missing
from benchflow.view.page_addresses import Fields, segments
from benchflow.view.page_rendering import STATIC
from benchflow.view.pages.arena_page import message_page
from benchflow.view.pages.atif_page import atif_page, atif_part_page
from benchflow.view.pages.calls_page import call_page
from benchflow.view.pages.compare_page import compare_page
from benchflow.view.pages.evidence_page import evidence_page
from benchflow.view.pages.file_page import file_response
from benchflow.view.pages.job_page import job_page, live_version
from benchflow.view.pages.jobs_page import jobs_page, jobs_version
from benchflow.view.pages.package_page import package_page
from benchflow.view.pages.rollout_page import OpenRollout, part_page, rollout_page
from benchflow.view.pages.task_page import task_page
from benchflow.view.pages.tree_page import tree_page
from benchflow.view.viewer import Viewer

logger = logging.getLogger(__name__)

Names = tuple[str, ...]
Page = Callable[[Viewer, Names, Fields], str | Response]
ASSETS: Final = {
    "viewer.css": "text/css; charset=utf-8",
    "viewer.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "mark.svg": "image/svg+xml",
}
PAGES: Final[dict[str, Page]] = {
    "/": lambda viewer, _, fields: jobs_page(viewer, fields),
    "/compare": lambda viewer, _, fields: compare_page(viewer, fields),
    "/job/{job}": lambda viewer, names, fields: job_page(viewer, names[1], fields),
    "/job/{job}/task": lambda viewer, names, fields: task_page(viewer, names[1], fields),
    "/job/{job}/package": lambda viewer, names, fields: package_page(viewer, names[1], fields),
    "/job/{job}/evidence": lambda viewer, names, fields: evidence_page(viewer, names[1], fields),
    "/job/{job}/rollout/{rollout}": lambda viewer, names, fields: rollout_page(viewer, names[1], names[3], fields),
    "/job/{job}/rollout/{rollout}/part": lambda viewer, names, fields: part_page(viewer, names[1], names[3], fields),
    "/job/{job}/rollout/{rollout}/call": lambda viewer, names, fields: call_page(viewer, names[1], names[3], fields),
    "/job/{job}/rollout/{rollout}/message": lambda viewer, names, fields: message_page(
        viewer, names[1], names[3], fields
    ),
    "/job/{job}/rollout/{rollout}/tree": lambda viewer, names, _: tree_page(viewer, names[1], names[3]),
    "/job/{job}/rollout/{rollout}/file": lambda viewer, names, fields: file_response(
        viewer, names[1], names[3], fields
    ),
}


def open_viewer(path: Path) -> Viewer:
    """The viewer of a folder of jobs, of one job, or of a trajectory in ATIF; anything else is a `UsageError`."""
    if not path.is_file():
        return Viewer(KnownJobs(path), str(path))
    try:
        read_atif(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{error} A folder of jobs, a job or a trajectory in ATIF can be viewed.") from error
    return Viewer(KnownJobs(path.parent), str(path), trajectory=path)


def viewer_app(viewer: Viewer, *, hosts: Iterable[str] | None = ()) -> ASGIApp:
    """The application; `hosts` are names that it answers to besides loopback, None: every name."""
    pages = _trajectory_pages(viewer.trajectory) if viewer.trajectory is not None else PAGES
    routes = [Route(path, _endpoint(viewer, page)) for path, page in pages.items()]
    if viewer.trajectory is None:
        routes += [Route(f"/live/{path}", _live(viewer)) for path in ("jobs", "job/{job}", "rollout/{job}/{rollout}")]
    routes.append(Route("/static/{name}", _asset))

    def missing(_request: Request, _error: Exception) -> Response:
        return _error_page(viewer, 404, "There is no such page.", "The address may be from another version.")

    return HttpGuard(Starlette(routes=routes, exception_handlers={404: missing}), hosts)


def _trajectory_pages(path: Path) -> dict[str, Page]:
    return {
        "/": lambda viewer, _, fields: atif_page(viewer, path, fields),
        "/part": lambda viewer, _, fields: atif_part_page(viewer, path, fields),
    }


def _endpoint(viewer: Viewer, page: Page) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            made = page(viewer, segments(request), Fields.of(request))
        except Missing as error:
            return _error_page(viewer, 404, str(error), error.hint)
        except BenchflowError as error:
            return _error_page(viewer, 500, str(error), "")
        except Exception as error:  # the boundary to the browser: a page says so, and the viewer keeps running
            logger.exception("A page failed")
            return _error_page(viewer, 500, f"The page cannot be made: {type(error).__name__}.", "Reload it to retry.")
        return made if isinstance(made, Response) else _html(made)

    return endpoint


def _html(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})


def _error_page(viewer: Viewer, status: int, sentence: str, hint: str) -> Response:
    return _html(viewer.page("error.html", "Not found", [("Jobs", "/")], sentence=sentence, hint=hint), status)


def _live(viewer: Viewer) -> Callable[[Request], Response]:
    """Answers 204 if a page is still what it was, 200 if it changed, 404 if what it shows is gone."""

    def endpoint(request: Request) -> Response:
        _, kind, *names = segments(request)
        try:
            if kind == "jobs":
                version = jobs_version(viewer)
            elif kind == "job":
                job = viewer.jobs.get(names[0])
                version = live_version(job, job.head)
            else:
                version = OpenRollout(viewer, viewer.jobs.get(names[0]), names[1]).version()
        except (Missing, BenchflowError):
            return Response(status_code=404)
        same = Fields.of(request).one("v") == version
        return Response(status_code=204 if same else 200, headers={"Cache-Control": "no-store"})

    return endpoint


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        return Response(status_code=404)
    return Response((STATIC / name).read_bytes(), media_type=ASSETS[name], headers={"Cache-Control": "no-cache"})
