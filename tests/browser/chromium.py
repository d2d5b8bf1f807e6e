"""Chromium without a window, and as much of the DevTools protocol as the tests need.

The protocol comes over two pipes (`--remote-debugging-pipe`: JSON messages that end with a NUL, in on descriptor 3, out
on 4). Both are one socket here, so that every wait has a limit. A browser whose tests are gone sees the end of it and
goes too.

Nothing runs beside the tests: messages are read, and requests of a page for its own files are answered, while somebody
waits for something (`Browser.call`).
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent / "pages"
MOUNT = "/test-page/"  # where the pages are to be found at the origin of the daemon, which knows nothing of it

REBOUND = "evil.test"
"""A name that a stranger has pointed at this machine."""

FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-startup-window",
    "--no-first-run",
    "--no-sandbox",  # it refuses to run as root otherwise; the only pages that it sees are ours
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-extensions",
    "--password-store=basic",
    # A page that nobody sees runs its timers like one that is seen.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    # Nothing but loopback: no updates, no reports, no names, no proxies.
    "--disable-background-networking",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    # The last two: a page that was handed over here came from no address, which counts as a public one, and Chromium
    # keeps such pages from opening a WebSocket to loopback. A page that a server on loopback had sent would be let.
    "--disable-features=DialMediaRouteProvider,MediaRouter,OptimizationHints,Translate,"
    "LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets",
    "--disable-sync",
    f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--metrics-recording-only",
    "--no-pings",
    "--no-proxy-server",
]

KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "Backspace": 8, "ArrowUp": 38, "ArrowDown": 40, " ": 32}

# For /bin/sh, which is handed the socket as its standard input, and becomes the browser.
PIPES_ON_3_AND_4 = 'exec "$@" 3<&0 4>&0 </dev/null'


def find_program() -> str:
    """The browser that `CHROMIUM` in the environment names, else the one that `scripts/test` installs on Debian."""
    name = os.environ.get("CHROMIUM") or "chromium"
    found = shutil.which(name)
    assert found, (
        f"{name} is missing, and these tests need it (apt-get install chromium, or CHROMIUM that names another)"
    )
    return found


class CommandRefused(AssertionError):
    """The browser has not carried out a command."""


class Browser:
    """One browser with a profile in `home`, which belongs to it and goes with it."""

    def __init__(self, home: Path) -> None:
        program = find_program()
        home.mkdir()
        self._home = home
        self._pages: dict[str, Page] = {}
        self._numbers = itertools.count(1)
        self._answers: dict[int, Any] = {}
        self._unread = b""
        self._socket, theirs = socket.socketpair()
        # All files that it keeps beside its profile go into the same directory.
        environ = {name: text for name, text in os.environ.items() if not name.startswith(("XDG_", "DBUS_"))}
        environ |= {"HOME": str(home), "TMPDIR": str(home)}
        with theirs, (home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", PIPES_ON_3_AND_4, "sh", program, *FLAGS, f"--user-data-dir={home / 'profile'}"],
                env=environ,
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        """End it and every process it started, by its process group, and remove its directory."""
        self._socket.close()
        # Before anybody has waited for it, its id cannot be somebody else's.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
        deadline = time.monotonic() + 10
        while self._home.exists():
            # What is about to die may still add a file.
            assert time.monotonic() < deadline, f"{self._home} cannot be removed"
            shutil.rmtree(self._home, ignore_errors=True)

    def call(self, method: str, session: str = "", *, within_s: float = 20, **params: Any) -> Any:
        """One command and its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        deadline = time.monotonic() + within_s
        self._socket.settimeout(within_s)
        self._socket.sendall(json.dumps(message).encode() + b"\0")
        while number not in self._answers:
            self._take_message(method, deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise CommandRefused(method, answer["error"]["message"])
        return answer["result"]

    def _take_message(self, waiting_for: str, deadline: float) -> None:
        while b"\0" not in self._unread:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                more = self._socket.recv(1 << 16)
            except TimeoutError:
                raise AssertionError(f"the browser has not answered {waiting_for}: {self._end_of_log()}") from None
            if not more:
                raise AssertionError(f"the browser has ended: {self._end_of_log()}")
            self._unread += more
        text, self._unread = self._unread.split(b"\0", 1)
        message = json.loads(text)
        if "id" in message:
            self._answers[message["id"]] = message
        elif (page := self._pages.get(message.get("sessionId"))) is not None:
            page.take_event(message["method"], message["params"])

    def _end_of_log(self) -> str:
        return (self._home / "log").read_text(errors="replace")[-3000:]

    @contextmanager
    def page(self, origin: str, name: str) -> Iterator[Page]:
        """The page of `pages/` with that name, loaded as if it came from `origin`; closed at the end."""
        with self.blank() as page:
            page.load(origin, name)
            yield page

    @contextmanager
    def visit(self, url: str) -> Iterator[Page]:
        """A page that the daemon has; closed at the end."""
        with self.blank() as page:
            page.go(url)
            yield page

    @contextmanager
    def blank(self) -> Iterator[Page]:
        """An empty page; closed at the end."""
        # A context for each: it shares no connection, no cache and no cookie with another.
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        try:
            yield page
        finally:
            del self._pages[session]
            self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """A page with its script, in which expressions can be evaluated."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loaded = False
        self._errors: list[str] = []
        self._answer: Callable[[str], str] | None = None
        self._intercepts = False
        self.complaints: list[str] = []
        """What the browser had to say of a page that was visited: violations of its policy, what it could not load."""
        self.requests: list[str] = []
        """What was asked for, for it."""

    def load(self, origin: str, name: str) -> None:
        self._call("Runtime.enable")
        self._call("Page.enable")
        self._intercept(f"{origin}{MOUNT}*")
        answer = self._call("Page.navigate", url=f"{origin}{MOUNT}{name}")
        assert "errorText" not in answer, answer
        self.until("document.readyState === 'complete'")
        # Later requests of the page do not concern this class.
        self._let_through()
        assert self.value_of("location.origin") == origin

    def go(self, url: str) -> None:
        for domain in ("Runtime", "Page", "Log", "Network"):
            self._call(f"{domain}.enable")
        answer = self._call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        self.until("document.readyState === 'complete'")

    def follow(self, url: str) -> None:
        """Click on a link to this address."""
        self._call(
            "Runtime.evaluate",
            expression=f"const a = document.createElement('a'); a.href = '{url}'; document.body.append(a); a.click()",
            userGesture=True,
        )

    def set_width(self, pixels: int, height: int = 800) -> None:
        """As on a screen of this width."""
        self._call("Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=False)

    def set_dark(self, *, dark: bool) -> None:
        """As on a system whose colours are dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """The page as it is seen, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def press(self, key: str, text: str = "", modifiers: int = 0) -> None:
        """Press a key of the keyboard and let it go: `Tab`, `Enter`, `ArrowDown`, or a character. `modifiers`: 8 is
        Shift."""
        code = KEY_CODES.get(key, ord(key.upper()[0]))
        typed = text or (key if len(key) == 1 else "\r" if key == "Enter" else "")
        event: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        written: dict[str, Any] = {"text": typed} if typed else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", **event, **written)
        self._call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self._call("Input.insertText", text=text)

    def hide(self, *, hidden: bool) -> None:
        """As if the person looked at another tab, or came back."""
        self.value_of(
            f"Object.defineProperty(document, 'hidden', {{value: {str(hidden).lower()}, configurable: true}});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )

    def value_of(self, expression: str, *, within_s: float = 20) -> Any:
        """What a JavaScript expression is in the page; of a promise, what it comes to."""
        answer = self._call(
            "Runtime.evaluate", within_s=within_s, expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, (expression, described(answer["exceptionDetails"]))
        assert not self._errors, self._errors
        return answer["result"].get("value")

    def result_of(self, function: str, *arguments: Any, within_s: float = 20) -> Any:
        """What a function of the page returns, called with values that JSON can hold."""
        written = ", ".join(json.dumps(argument) for argument in arguments)
        return self.value_of(f"{function}({written})", within_s=within_s)

    def until(self, condition: str, *, within_s: float = 20) -> None:
        deadline = time.monotonic() + within_s
        while not self.value_of(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                state = json.dumps(self.value_of("typeof state === 'function' ? state() : null"))
                raise AssertionError(f"after {within_s} s it is not true that {condition}: {state[:3000]}")
            time.sleep(0.02)

    @contextmanager
    def answering(self, pattern: str, answer: Callable[[str], str]) -> Iterator[None]:
        """Answer requests for URLs like this with JSON, in base64, instead of having them sent."""
        self._answer = answer
        self._intercept(pattern)
        try:
            yield
        finally:
            self._let_through()
            self._answer = None

    def _intercept(self, pattern: str) -> None:
        self._intercepts = True
        self._call("Fetch.enable", patterns=[{"urlPattern": pattern}])

    def _let_through(self) -> None:
        """From here on no request is answered: the browser sends on those that it had kept."""
        self._intercepts = False
        self._call("Fetch.disable")

    def take_event(self, method: str, event: Any) -> None:
        if method == "Fetch.requestPaused":
            if self._intercepts:
                self._answer_request(event)
        elif method == "Runtime.exceptionThrown":
            self._errors.append(described(event["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])

    def _answer_request(self, event: Any) -> None:
        if self._answer is not None:
            self._fulfill(event, 200, "application/json", self._answer(event["request"]["url"]))
            return
        path = PAGES / event["request"]["url"].rpartition(MOUNT)[2]
        known = path.parent == PAGES and path.is_file()
        content = base64.b64encode(path.read_bytes() if known else b"").decode()
        self._fulfill(event, 200 if known else 404, "text/html; charset=utf-8", content)

    def _fulfill(self, event: Any, status: int, kind: str, body: str) -> None:
        try:
            self._call(
                "Fetch.fulfillRequest",
                requestId=event["requestId"],
                responseCode=status,
                responseHeaders=[{"name": "Content-Type", "value": kind}],
                body=body,
            )
        except CommandRefused as refused:
            # The page has given the request up meanwhile: a view that is left aborts what it has asked for.
            if "InterceptionId" not in str(refused):
                raise

    def _call(self, method: str, *, within_s: float = 20, **params: Any) -> Any:
        return self._browser.call(method, self._session, within_s=within_s, **params)


def described(details: Any) -> str:
    return str(details.get("exception", {}).get("description") or details["text"])
