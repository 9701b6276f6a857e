"""Servers to compare with: `python -m benchmarks.other_servers PORT KIND DIR`."""

from __future__ import annotations

import http.server
import sys
from functools import partial


def main() -> None:
    port, kind, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if kind == "http.server":
        handler = partial(http.server.SimpleHTTPRequestHandler, directory=root)
        http.server.SimpleHTTPRequestHandler.protocol_version = "HTTP/1.1"
        http.server.SimpleHTTPRequestHandler.log_message = lambda *a: None  # type: ignore[method-assign]
        http.server.ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()
        return
    from aiohttp import web

    if kind == "aiohttp_uvloop":
        import uvloop

        uvloop.install()
    app = web.Application()
    app.router.add_static("/", root)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main()
