"""Measures an exported page in headless Chromium: bytes, time to the first translation, time per sentence.

python benchmarks/browser.py SITE TEXTS [--sentences 20]

SITE is a folder that `keras-tfm export --format web` wrote, TEXTS a text file, plain or .gz. The pages are served
compressed from this machine to a browser that has never seen them. Needs Debian's chromium and chromium-driver, and
`pip install selenium`.
"""

import argparse
import functools
import gzip
import http.server
import pathlib
import shutil
import statistics
import subprocess
import threading
import time

from keras_tfm.data import read_lines
from keras_tfm.export import runners

ROUNDS = 3
FLAGS = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync"
TYPE = "const box = document.getElementById('source'); box.value = arguments[0]; box.dispatchEvent(new Event('input'))"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", metavar="SITE", type=pathlib.Path)
    parser.add_argument("texts", metavar="TEXTS", type=pathlib.Path)
    parser.add_argument("--sentences", type=int, default=20)
    options = parser.parse_args()
    texts = list(read_lines(options.texts))[: options.sentences]
    server, firsts = Server(options.site), []
    for _ in range(ROUNDS):
        server.sent.clear()
        driver, start = browser(), time.perf_counter()
        driver.get(f"http://127.0.0.1:{server.server_port}/")
        wait(driver, "return document.getElementById('status').hidden")
        translate(driver, texts[0])
        firsts.append(time.perf_counter() - start)
        found, milliseconds = zip(*(translate(driver, text) for text in texts), strict=True)
        driver.quit()
    server.shutdown()
    same = sum(map(str.__eq__, found, runners.load(options.site)(texts)))
    for name, size in sizes([options.site / name for name in server.sent]).items():
        print(f"{name:8} {size / 1e6:5.2f} MB in {len(server.sent)} files")
    print(
        f"first translation after {statistics.median(firsts):.1f} s, then {statistics.median(milliseconds):.0f} ms each"
    )
    print(f"{same} of {len(texts)} sentences as by Python's runner")


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder, compressed; `sent` has the names of the files that were asked for."""

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.sent, self.files = set(), {}
        for path in folder.rglob("*"):
            if path.is_file():
                self.files[str(path.relative_to(folder))] = gzip.compress(path.read_bytes())
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/") or "index.html"
        self.server.sent.add(name)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(name))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", len(self.server.files[name]))
        self.end_headers()
        self.wfile.write(self.server.files[name])

    def log_message(self, *arguments):
        pass


def sizes(paths):
    """Bytes of files, plain and as a web server would compress them: {way: bytes}."""
    contents = [path.read_bytes() for path in paths]
    found = {"plain": sum(map(len, contents)), "gzip": sum(len(gzip.compress(content)) for content in contents)}
    if shutil.which("brotli"):
        run = functools.partial(subprocess.run, ["brotli", "--stdout", "--quality=9"], capture_output=True)
        found["brotli"] = sum(len(run(input=content).stdout) for content in contents)
    return found


def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in FLAGS.split():
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def wait(driver, script, *arguments):
    while not driver.execute_script(script, *arguments):
        time.sleep(0.01)


def translate(driver, text):
    """The translation of a text, and the milliseconds that the page names."""
    driver.execute_script(TYPE, text)
    wait(driver, "return document.getElementById('translation').dataset.of === arguments[0]", text)
    read = "return ['translation', 'time'].map((name) => document.getElementById(name).textContent)"
    found, milliseconds = driver.execute_script(read)
    return found, float(milliseconds.removesuffix(" ms"))


if __name__ == "__main__":
    main()
