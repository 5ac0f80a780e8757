"""The shop: one page, and a server for it on a free port of the loopback."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = """<!doctype html><html lang="en"><title>Shop</title><h1>Tea and coffee</h1>
<ul id="goods"></ul>
<label>Name <input id="name"></label>
<label>Delivery <select id="delivery"><option>by post</option><option>pick up</option></select></label>
<button id="order">Order</button><p id="message"></p>
<script>
const goods = {"Assam": 4, "Oolong": 7, "Arabica": 6}, basket = {};
for (const [name, price] of Object.entries(goods)) {
  const item = document.createElement("li"), add = document.createElement("button");
  item.textContent = `${name}, ${price} euros `;
  add.textContent = `Add ${name}`;
  add.onclick = () => { basket[name] = (basket[name] || 0) + 1; };
  item.append(add);
  document.getElementById("goods").append(item);
}
document.getElementById("order").onclick = () => {
  const name = document.getElementById("name").value, delivery = document.getElementById("delivery").value;
  const message = document.getElementById("message");
  if (!name || !Object.keys(basket).length) { message.textContent = "Name or goods are missing."; return; }
  window.placed = {name, delivery, goods: {...basket}};
  message.textContent = `Thank you, ${name}.`;
};
</script></html>"""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = PAGE.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the base class's
        """Requests are not logged."""


class Shop:
    """The server; `close` ends it."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self._server.serve_forever, name="shop", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
