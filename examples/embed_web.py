"""The server's page in a web view: the server is a child of this program, and ends with it.

python examples/embed_web.py [model.gguf]
"""

import os
import secrets
import subprocess
import sys
import threading

try:
    import webview
    from webview.menu import Menu, MenuAction
except ImportError as error:
    sys.exit(f"{error}; this program needs pywebview; run: pip install 'pywebview[pyside6]'")

KEY = secrets.token_urlsafe()
USE_KEY = f"""if (!sessionStorage.getItem("tgr-local.key")) {{
  sessionStorage.setItem("tgr-local.key", "{KEY}");
  location.reload();
}}"""


def start_server(model):
    """The server, and its address as soon as it listens: its page shows when the model is there."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tgr_local", "serve", "--port", "0", "--exit-on-eof", *model],
        env={**os.environ, "TGR_API_KEY": KEY},
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines = []
    for line in server.stderr:
        lines.append(line)
        if "listening on" in line:
            threading.Thread(
                target=sys.stderr.writelines, args=[server.stderr], daemon=True
            ).start()
            return server, line.split()[-1]
    sys.exit("".join(lines))


def open_window(url):
    window = webview.create_window("tgr-local in a web view", url, width=900, height=640)
    window.events.loaded += lambda: window.run_js(USE_KEY)


def main():
    server, url = start_server(sys.argv[1:2])
    open_window(url)
    webview.start(menu=[Menu("Window", [MenuAction("New window", lambda: open_window(url))])])
    server.stdin.close()  # after the last window was closed; replies under way are cancelled
    sys.exit(server.wait())


if __name__ == "__main__":
    main()
