"""The live page in a real browser: it loads, draws, streams, outlives the server, and is quiet."""

from __future__ import annotations

import shutil
import socket

import pytest

from helpers.servers import LetterModel, PacedRunner, post, read_all, serving, until

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs Debian's chromium and chromium-driver"
)
CLOSE = {"connection": "close"}

COUNT_PIXELS = """
const canvas = document.getElementById(arguments[0]), g = canvas.getContext("2d");
const data = g.getImageData(0, 0, canvas.width, canvas.height).data;
const found = new Set();
for (let i = 0; i < data.length; i += 4) if (data[i + 3]) found.add(`${data[i]},${data[i+1]},${data[i+2]}`);
return [...found];
"""
DECODE, PREFILL = "79,195,200", "240,168,80"


@pytest.fixture
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1100"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    made.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    yield made
    made.quit()


def text(browser, name: str) -> str:
    return browser.find_element("id", name).text


def complaints(browser, *, may_lose_server: bool = False) -> list[dict]:
    """What the console says, but for a word on this test's own reading of pixels."""
    lines = [line for line in browser.get_log("browser") if "getImageData" not in line["message"]]
    return [line for line in lines if not (may_lose_server and line["source"] == "network")]


def make_model() -> LetterModel:
    return LetterModel(PacedRunner(0.005), max_num_batched_tokens=32)


def test_it_draws_the_steps_and_streams_an_answer(browser):
    with serving(make_model()) as served:
        browser.get(served.url + "/")
        until(lambda: text(browser, "state") == "live")
        assert "letters" in text(browser, "model")
        body = {"prompt": [9] * 300, "max_tokens": 60}
        read_all(post(served.port, "/v1/completions", body, headers=CLOSE))
        until(lambda: PREFILL in browser.execute_script(COUNT_PIXELS, "c-mix"))
        until(lambda: DECODE in browser.execute_script(COUNT_PIXELS, "c-mix"))
        until(lambda: DECODE in browser.execute_script(COUNT_PIXELS, "c-gap"))
        until(lambda: text(browser, "n-p50").endswith("ms"))
        length = browser.find_element("id", "max")
        length.clear()
        length.send_keys("50")
        browser.find_element("id", "send").click()
        until(lambda: "50 tokens" in text(browser, "answer-info"))
        assert len(text(browser, "answer")) == 50
        assert DECODE in browser.execute_script(COUNT_PIXELS, "c-answer")
        browser.find_element("id", "land").click()
        until(lambda: "Landed in" in text(browser, "land"))
        assert complaints(browser) == []


def test_it_outlives_the_server(browser):
    with serving(make_model()) as served:
        port = served.port
        browser.get(served.url + "/")
        until(lambda: text(browser, "state") == "live")
    until(lambda: text(browser, "state") != "live")
    with serving(make_model(), port=port) as served:
        until(lambda: text(browser, "state") == "live")
        read_all(post(port, "/v1/completions", {"prompt": "a", "max_tokens": 30}, headers=CLOSE))
        until(lambda: DECODE in browser.execute_script(COUNT_PIXELS, "c-mix"))
        assert complaints(browser, may_lose_server=True) == []


def test_it_asks_for_a_key(browser):
    with serving(make_model(), api_keys=("open-sesame",)) as served:
        browser.get(served.url + "/")
        until(lambda: text(browser, "state") == "locked")
        browser.find_element("id", "apikey").send_keys("open-sesame")
        browser.find_element("css selector", "#lock button").click()
        until(lambda: text(browser, "state") == "live")
        assert complaints(browser, may_lose_server=True) == []


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(browser, width):
    with serving(make_model()) as served:
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(served.url + "/")
        until(lambda: text(browser, "state") == "live")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert (
            wide <= browser.execute_script("return document.documentElement.clientWidth") <= width
        )


def test_it_is_one_file():
    """No request but to the server itself: the browser's own policy would say so in the console."""
    with serving(make_model()) as served, socket.create_connection(("127.0.0.1", served.port)) as c:
        c.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        page = read_all(c)
    for word in (b"<script src", b'<link rel="stylesheet', b"@import", b"url("):
        assert word not in page
