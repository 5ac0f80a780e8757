"""HTTP to one registry: first contact, authentication, redirects. Blocking; used from threads.

Proxies of the machine are used as their variables say, never for loopback. Credentials go to the registry and to the
token server that it names, and never along a redirect to another host.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit

from benchflow.errors import UsageError
from benchflow.sandbox.images.distribution.credentials import Found
from benchflow.sandbox.images.distribution.registries import Endpoint, is_loopback
from benchflow.sandbox.pulling import Credentials

CONTACT_SEC: Final = 5.0
_STALLED_SEC: Final = 30.0
_TRIES: Final = 4
_BUSY: Final = (429, 502, 503, 504)
_MAX_ANSWER: Final = 8 << 20
_PARAMETER: Final = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')
NETWORK_ERRORS: Final = (OSError, HTTPException)
"""What a connection raises; `URLError` is an `OSError`."""


class Unreachable(Exception):
    """The server gave no answer; the text says why."""


class Refused(Exception):
    """The server wants other credentials, or none will do."""


class RegistryClient:
    """Requests for one repository of one endpoint; `find` looks up credentials when the server first asks for them."""

    def __init__(self, endpoint: Endpoint, repository: str, find: Callable[[], Found]) -> None:
        self.registry: Final = endpoint.registry
        self._endpoint: Final = endpoint
        self._repository: Final = repository
        self._find: Final = find
        self._found: Found | None = None
        self._opener: Final = _opener(endpoint)
        self._lock: Final = threading.Lock()
        """Held while a token is fetched, so that parallel downloads fetch one."""
        self._authorization: str | None = None
        self._base = ""

    def contact(self) -> None:
        """Find out whether the server answers, in `CONTACT_SEC` at most; raises `Unreachable`."""
        self._base = reach(self._endpoint, self._opener)

    def read(self, path: str, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
        """A small answer as a whole, with its headers; raises `HTTPError`, `Refused` or an error of the network."""
        with self.open(path, headers) as answer:
            data: bytes = answer.read(_MAX_ANSWER + 1)
            if len(data) > _MAX_ANSWER:
                raise Unreachable(f"{self.registry} sent an answer of more than {_MAX_ANSWER >> 20} MB")
            return data, dict(answer.headers.items())

    def open(self, path: str, headers: Mapping[str, str] | None = None, *, method: str = "GET") -> HTTPResponse:
        """The answer to a request below the repository."""
        url = f"{self._base}/v2/{self._repository}/{path}"
        for attempt in range(_TRIES):
            sent = self._authorization
            try:
                return self._send(url, method, headers or {}, sent)
            except HTTPError as error:
                with error:
                    if error.code == 401 and attempt < _TRIES - 1 and not (sent and sent.startswith("Basic")):
                        self._authorize(error.headers.get_all("WWW-Authenticate") or [], sent)
                    elif error.code in (401, 403):
                        raise Refused(self._why_refused(error)) from error
                    elif error.code in _BUSY and attempt < _TRIES - 1:
                        time.sleep(_pause(error, attempt))
                    else:
                        raise
        raise Refused(f"{self.registry} does not accept the token that its own token server gave")

    def _send(self, url: str, method: str, headers: Mapping[str, str], authorization: str | None) -> HTTPResponse:
        request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310 (scheme is checked by `Registries`)
        if authorization:
            # Headers of this kind are not copied to the request that follows a redirect.
            request.add_unredirected_header("Authorization", authorization)
        response: HTTPResponse = self._opener.open(request, timeout=_STALLED_SEC)
        return response

    def _authorize(self, challenges: list[str], sent: str | None) -> None:
        with self._lock:
            if self._authorization != sent:
                return  # another thread was first
            credentials = self._credentials()
            offered = {kind.lower(): values for kind, values in map(parse_challenge, challenges)}
            if credentials is not None and credentials.registry_token and sent is None:
                self._authorization = f"Bearer {credentials.registry_token}"
            elif "bearer" in offered:
                self._authorization = f"Bearer {self._token(offered['bearer'], credentials)}"
            elif "basic" in offered and credentials is not None and credentials.username:
                self._authorization = basic(credentials)
            else:
                raise Refused(f"{self.registry} demands credentials{self._hint()}")

    def _credentials(self) -> Credentials | None:
        if self._found is None:
            self._found = self._find()
        return self._found.credentials

    def _token(self, challenge: Mapping[str, str], credentials: Credentials | None) -> str:
        realm = challenge.get("realm", "")
        parts = urlsplit(realm)
        plain_allowed = self._base.startswith("http:") or is_loopback(parts.hostname)
        if parts.scheme != "https" and not (parts.scheme == "http" and plain_allowed):
            raise Refused(f"{self.registry} names a token server without TLS: {realm[:100]!r}")
        scope = challenge.get("scope") or f"repository:{self._repository}:pull"
        values = {"service": challenge.get("service", ""), "scope": scope}
        if credentials is not None and credentials.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": credentials.identity_token,
                "client_id": "benchcube",
            }
            request = urllib.request.Request(realm, data=urlencode({**values, **form}).encode())  # noqa: S310 (checked above)
        else:
            query = urlencode({key: value for key, value in values.items() if value})
            request = urllib.request.Request(f"{realm}{'&' if parts.query else '?'}{query}")  # noqa: S310 (checked above)
            if credentials is not None and credentials.username:
                request.add_unredirected_header("Authorization", basic(credentials))
        return self._fetch_token(request)

    def _fetch_token(self, request: urllib.request.Request) -> str:
        try:
            with self._opener.open(request, timeout=_STALLED_SEC) as answer:
                values = json.loads(answer.read(_MAX_ANSWER))
                return str(values.get("token") or values["access_token"])
        except HTTPError as error:
            with error:
                raise Refused(f"the token server {request.host} answered {error.code}{self._hint()}") from error
        except (ValueError, KeyError, AttributeError) as error:
            raise Refused(f"the token server {request.host} sent no token") from error

    def _why_refused(self, error: HTTPError) -> str:
        return f"{self.registry} answered {error.code} {_message(error)}".rstrip() + self._hint()

    def _hint(self) -> str:
        """What this user's credentials have to do with a refusal."""
        if self._found is None or self._found.credentials is not None:
            return "" if self._found is None else "; the credentials for it are not accepted"
        return f"; {self._found.problem}" if self._found.problem else "; there are no credentials for it"


def reach(endpoint: Endpoint, opener: urllib.request.OpenerDirector) -> str:
    """The address at which the endpoint answers; one that gives no answer in time is `Unreachable`."""
    answers: list[str] = []
    reasons: list[str] = []
    # A name server that is silent blocks for longer than any timeout of a socket: only a thread can be left behind.
    thread = threading.Thread(target=_contact, args=(endpoint, opener, answers, reasons), daemon=True)
    thread.start()
    thread.join(CONTACT_SEC)
    if answers:
        return answers[0]
    raise Unreachable(reasons[0] if reasons else f"no answer within {CONTACT_SEC:g} s")


def _contact(endpoint: Endpoint, opener: urllib.request.OpenerDirector, answers: list[str], reasons: list[str]) -> None:
    for url in endpoint.urls:
        try:
            opener.open(f"{url}/v2/", timeout=CONTACT_SEC).close()
        except HTTPError as error:
            error.close()  # any answer shows that there is a server
        except (*NETWORK_ERRORS, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            reasons.append(_explain(reason, endpoint))
            if isinstance(reason, ssl.SSLCertVerificationError | ConnectionRefusedError):
                return
            continue  # perhaps a server of this machine that does not speak TLS
        answers.append(url)
        return


def _explain(reason: object, endpoint: Endpoint) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message}); name its CA in registries.toml"
    if isinstance(reason, TimeoutError):
        return f"no answer within {CONTACT_SEC:g} s"
    if isinstance(reason, ssl.SSLError) and len(endpoint.urls) == 1:
        return f"it does not speak TLS ({reason.reason}); plain_http in registries.toml permits that"
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return text or type(reason).__name__


def parse_challenge(text: str) -> tuple[str, Mapping[str, str]]:
    """The kind and the parameters of a `WWW-Authenticate` header. Pure."""
    kind, _, rest = text.strip().partition(" ")
    return kind, {match[1].lower(): (match[2] or match[3] or "") for match in _PARAMETER.finditer(rest)}


def basic(credentials: Credentials) -> str:
    """The header for a name and a password."""
    pair = f"{credentials.username}:{credentials.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _pause(error: HTTPError, attempt: int) -> float:
    after = error.headers.get("Retry-After", "")
    return min(float(after), 10.0) if after.isdigit() else 0.5 * 2**attempt


def _message(error: HTTPError) -> str:
    """The first message of the registry's own list of errors."""
    try:
        return str(json.loads(error.read(1 << 16))["errors"][0]["message"])[:200]
    except (ValueError, KeyError, IndexError, TypeError, *NETWORK_ERRORS):
        return ""


def _opener(endpoint: Endpoint) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    for path in endpoint.certificates:
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{path} contains no certificates.", code="registries-invalid", file=str(path)) from error
    opener = urllib.request.OpenerDirector()
    for handler in (
        _Proxies(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    opener.addheaders = [("User-Agent", "benchcube")]
    return opener


class _Proxies(urllib.request.ProxyHandler):
    """The machine's proxies, for other machines only."""

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> Any:  # noqa: A002 (the name of the base class)
        if is_loopback(urlsplit(req.full_url).hostname):
            return None
        return super().proxy_open(req, proxy, type)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; with credentials only within one server, and never from TLS to plain HTTP."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if old.scheme == "https" and new.scheme != "https":
            fp.close()
            raise URLError(f"a redirect from {old.netloc} to {new.netloc} leaves TLS")
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        authorization = req.unredirected_hdrs.get("Authorization")
        if following is not None and authorization and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            following.add_unredirected_header("Authorization", authorization)
        return following
