"""The page in Chromium: tasks at two widths, keys, errors, and hostile replies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is absent")
pytest.importorskip("nh3", reason="the server's packages are absent")

import page_visits
from hostile_replies import HOSTILE
from page_tasks import TASKS
from page_visits import QUESTION, WIDTHS, Visit, chromium, conversation_file, server_of_tasks, visit
from serving import Served

if not chromium():
    pytest.skip("chromium is absent", allow_module_level=True)

STORED = "(async () => (await import('./page/store.js')).all())()"
FULL_AFTER = """(() => {{
  let room = {};
  const put = (window.hadPut ??= IDBObjectStore.prototype.put);
  IDBObjectStore.prototype.put = function (value) {{
    if (room-- <= 0) throw new DOMException("the disk is full");
    return put.call(this, value);
  }};
}})()"""
"""The storage of the browser takes so many conversations more."""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Served]:
    with server_of_tasks(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with page_visits.browser() as running:
        yield running


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_task(browser: Any, server: Served, task: Callable[[Visit], None]):
    """Every task at one of the widths; `page_tasks` as a program does all at both."""
    with visit(browser, server, list(WIDTHS)[TASKS.index(task) % 2]) as one:
        task(one)
        one.check()


def test_answer_now_ends_the_thinking(browser: Any, server: Served):
    with visit(browser, server, 390) as one:
        slow = {"n_candidates": 8, "n_mc": 4, "rollout_len": 24, "chunk_len": 8, "max_chunks": 60}

        def slowed(route: Any) -> None:
            body = route.request.post_data_json
            route.continue_(post_data=json.dumps({**body, "tgr": {**body["tgr"], **slow}}))

        one.page.route("**/v1/chat/completions", slowed)
        one.ask("Use 3, 7, 9 and 50 to make 141.")
        with one.page.expect_response("**/answer-now") as asked:
            one.page.get_by_text("Answer now").click()
        assert asked.value.status == 200
        assert one.finished(1)
        one.check()


def test_hostile_replies_do_nothing(browser: Any, server: Served):
    with visit(browser, server, 1280) as one:
        page = one.page
        page.on("dialog", lambda dialog: one.faults.append(dialog.message))
        one.load(conversation_file(*HOSTILE))
        page.locator(".text[aria-busy]").first.wait_for(state="detached")
        assert page.locator(".text:has(> *)").count() == len(HOSTILE)
        for link in page.locator(".text a").all():
            assert str(link.get_attribute("href")).startswith(("http://", "https://", "mailto:"))
        page.evaluate(
            "document.querySelectorAll('.text *').forEach((one) => {"
            " one.tagName === 'A' || one.dispatchEvent(new MouseEvent('click', {bubbles: false}));"
            " one.dispatchEvent(new MouseEvent('mouseover', {bubbles: false})); })"
        )
        assert page.evaluate("window.pwned") is None
        acting = "script, img, svg, style, input, iframe, form"
        assert page.locator(f".text :is({acting}):not(.copy svg)").count() == 0
        one.check()


def test_a_damaged_or_hostile_file_is_refused_whole(browser: Any, server: Served):
    circle = conversation_file("a", "b")
    circle["conversations"][0]["nodes"]["user0"]["parent"] = "assistant1"
    files = {
        b"{": "not JSON", b"[]": "not an export", b'{"format": "other"}': "not an export",
        json.dumps(circle).encode(): "circle",
    }  # fmt: skip
    with visit(browser, server, 1280) as one:
        for data, why in files.items():
            payload = {"name": "x.json", "mimeType": "application/json", "buffer": data}
            one.page.set_input_files("#import-file", payload)
            one.page.locator("#toast", has_text=why).wait_for()
        assert one.page.locator("#conversations .title").count() == 0
        odd: dict[str, Any] = conversation_file("fine")
        node = odd["conversations"][0]["nodes"]["assistant0"]
        node["cost"] = {"forward": {"<b>": "x"}, "method": 3}
        node["search"] = [{"scores": {"total": [1]}}, 7]
        node |= {"error": "x", "thinking": {"a": 1}, "html": "<img src=x>"}
        one.load(odd)
        one.page.get_by_text("How this reply was found").click()
        one.check()


def test_what_goes_wrong_is_told_with_a_way_out(browser: Any, tmp_path):
    with (
        server_of_tasks(tmp_path, api_key="secret") as server,
        visit(browser, server, 390, key="secret") as one,
    ):
        page = one.page
        page.locator("#key").get_by_label("API key").fill("wrong")
        page.get_by_text("Use this key").click()
        page.locator("#key[open]").wait_for()
        page.locator("#key").get_by_label("API key").fill("secret")
        page.get_by_text("Use this key").click()
        page.locator("#method option[value='markov']").wait_for(state="attached")
        one.ask(QUESTION)
        assert "33" in one.finished(1)

        page.evaluate("sessionStorage.setItem('tgr-local.key', 'wrong')")
        one.ask(QUESTION)
        problem = page.locator(".problem").last
        problem.get_by_text("API key").first.wait_for()
        problem.get_by_text("Enter the API key").click()
        page.locator("#key").get_by_label("API key").fill("secret")
        page.get_by_text("Use this key").click()
        page.locator(".problem").last.get_by_text("Try again").click()
        assert "33" in one.finished(2)

        server.stop()
        one.ask(QUESTION)
        page.locator(".problem", has_text="does not answer").wait_for()
        one.check()


def refuse(one: Visit, status: int, message: str, **about: Any) -> Any:
    """The last problem that the page shows where the server refuses a question in this way."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}

    def refused(route: Any) -> None:
        route.fulfill(status=status, json={"error": error | about})

    one.page.route("**/v1/chat/completions", refused)
    one.ask(QUESTION)
    problem = one.page.locator(".problem", has_text=message)
    problem.get_by_text("Try again").wait_for()
    one.page.unroute("**/v1/chat/completions", refused)
    return problem


def test_the_settings_are_offered_where_one_helps(browser: Any, server: Served):
    full = {"code": "context_length_exceeded", "n_ctx": 4096}
    with visit(browser, server, 1280) as one:
        one.page.click("#open-settings")
        one.page.locator("#setting-temperature").fill("3")
        one.page.locator("#setting-temperature").blur()
        one.page.keyboard.press("Escape")
        for offered, about in (
            (True, {"param": "temperature"}),
            (False, {"param": "top_p"}),  # nobody has set it here
            (False, {"param": "messages"}),
            (False, {}),
            (True, {**full, "n_prompt_tokens": 4000}),  # the room is for the reply
            (False, {**full, "n_prompt_tokens": 5000}),
        ):
            problem = refuse(one, 400, f"refused {about}", **about)
            assert problem.get_by_text("Open the settings").count() == offered, about
        assert refuse(one, 404, "gone").get_by_text("Open the settings").count() == 0
        one.check()


@pytest.mark.parametrize("width", list(WIDTHS))
def test_a_toast_covers_nothing_that_one_writes(browser: Any, server: Served, width: int):
    with visit(browser, server, width) as one:
        page = one.page
        good = {"name": "good.txt", "mimeType": "text/plain", "buffer": b"hello"}
        bad = {"name": "bad.png", "mimeType": "image/png", "buffer": b"\x89PNG\xff\xfe"}
        page.set_input_files("#attach-file", [good, bad])
        page.locator("#toast", has_text="bad.png").wait_for()
        page.locator("#attached li").wait_for()
        toast, chips, box = (
            page.locator(name).bounding_box() for name in ("#toast", "#attached", "#box")
        )
        assert toast["y"] + toast["height"] <= chips["y"] < box["y"]
        assert toast["x"] >= 0 and toast["x"] + toast["width"] <= width
        one.picture("toast")
        one.check()


def test_settings_begin_with_words(browser: Any, server: Served):
    with visit(browser, server, 1280) as one:
        page = one.page
        page.click("#open-settings")
        labels = page.locator("#settings .field label").all_text_contents()
        assert len(labels) > 40 and len(set(labels)) == len(labels)
        assert not [label for label in labels if not re.match("[A-Z][a-zA-Z]+( |,|$)", label)]
        first = labels[: labels.index("Seed") + 1]
        assert first[-4:] == ["Method", "Longest reply, in tokens", "Temperature", "Seed"]
        named = page.locator(".field", has_text="Longest reply").locator("code")
        assert named.text_content() == "max_tokens"
        page.locator("#setting-Method").select_option("markov")
        assert page.input_value("#method") == "markov"
        one.check()


def test_the_gauge_knows_of_a_reply_that_a_reload_ended(browser: Any, server: Served):
    with visit(browser, server, 1280) as one:
        lost = conversation_file("a", "b")
        nodes = lost["conversations"][0]["nodes"]
        nodes["assistant0"]["cost"] = {"context": 1000}
        nodes["assistant1"] |= {"state": "streaming", "context": 2345}
        one.load(lost)
        one.page.locator("#context", has_text="2,345 of").wait_for()
        one.page.reload()
        one.page.locator("#context", has_text="2,345 of").wait_for()
        nodes["assistant1"]["context"] = {"a": "<b>"}
        lost["conversations"][0]["title"] = "imported as well"
        one.load(lost)
        one.page.locator("#context", has_text="1,000 of").wait_for()
        one.page.click("#new")
        one.ask(QUESTION)
        one.finished(1)
        told = one.page.evaluate(STORED)
        replies = [node for one in told for node in one["nodes"].values() if node.get("search")]
        assert any(node.get("context", 0) > 0 for node in replies)
        one.check()


def test_models_are_listed_with_their_memory(browser: Any, server: Served):
    def listed(route: Any) -> None:
        small, large = ({"needed": 5 * 10**8, "fits": True}, {"needed": 9 * 10**10, "fits": False})
        names = {"small": small, "large": large, "unknown": None}
        data = [{"id": name} | ({"memory": m} if m else {}) for name, m in names.items()]
        route.fulfill(json={"object": "list", "data": data})

    with visit(browser, server, 1280) as one:
        one.page.route("**/v1/models?memory=1", listed)
        one.page.reload()
        one.page.locator("#model option[value='large']").wait_for(state="attached")
        options = one.page.locator("#model option").all_text_contents()
        assert options == [
            "small · 500 MB",
            "large · 90.0 GB, more than the free memory",
            "unknown",
        ]
        one.check()


def opened_again(one: Visit, *, n: int) -> Any:
    """Another tab, with the first conversation of the list, which has n replies."""
    other = one.page.context.new_page()
    other.goto(one.server.url)
    other.locator("#conversations .title").first.click()
    replied(other, n)
    return other


def ask(tab: Any, text: str) -> None:
    tab.fill("#question", text)
    tab.press("#question", "Enter")


def replied(tab: Any, n: int) -> None:
    """Waits until n replies are whole."""
    tab.locator(".message.assistant .actions .again").nth(n - 1).wait_for()


def writes(tab: Any) -> None:
    tab.locator(".live:not([hidden])", has_text="writing").wait_for()


def questions(tab: Any) -> list[list[str]]:
    """Those of every stored conversation."""
    stored = tab.evaluate(STORED)
    return [
        [node["text"] for node in one["nodes"].values() if node["role"] == "user"] for one in stored
    ]


def test_two_tabs_lose_nothing_of_each_other(browser: Any, tmp_path):
    """Each writes while the other does, and has an older version of what the other writes."""
    with server_of_tasks(tmp_path) as server, visit(browser, server, 1280) as one:
        one.ask(QUESTION)
        one.finished(1)
        other = opened_again(one, n=1)
        with server.hold():
            for tab, text in ((one.page, "What is 1 + 1?"), (other, "What is 2 + 2?")):
                ask(tab, text)
                writes(tab)
        for tab in (one.page, other):
            replied(tab, 2)
        (stored,) = other.evaluate(STORED)
        asked = {node["text"] for node in stored["nodes"].values() if node["role"] == "user"}
        assert asked == {QUESTION, "What is 1 + 1?", "What is 2 + 2?"}
        states = [node["state"] for node in stored["nodes"].values() if node["role"] != "user"]
        assert states == ["done"] * 3
        one.check()


def test_what_another_tab_deletes_stays_so_until_it_is_asked_again(browser: Any, tmp_path):
    with server_of_tasks(tmp_path) as server, visit(browser, server, 1280) as one:
        page = one.page
        one.ask(QUESTION)
        one.finished(1)
        other = opened_again(one, n=1)
        with server.hold():
            ask(other, "What is 1 + 1?")
            writes(other)
            page.get_by_label("Delete").click(force=True)
            page.get_by_text("is deleted.").wait_for()
        replied(other, 2)
        assert questions(other) == []
        ask(other, "What is 2 + 2?")
        replied(other, 3)
        page.locator("#conversations .title").click()
        replied(page, 3)
        ask(page, "What is 3 + 3?")
        replied(page, 4)
        asked = [QUESTION, "What is 1 + 1?", "What is 2 + 2?", "What is 3 + 3?"]
        assert questions(page) == [asked]
        one.check()


def test_a_title_and_a_system_prompt_of_another_tab_are_kept(browser: Any, tmp_path):
    with server_of_tasks(tmp_path) as server, visit(browser, server, 1280) as one:
        one.ask(QUESTION)
        one.finished(1)
        other = opened_again(one, n=1)
        with server.hold():
            one.ask("What is 1 + 1?")
            writes(one.page)
            other.get_by_text("Add a system prompt").click()
            other.get_by_label("System prompt").fill("Be short.")
            other.get_by_label("System prompt").press("Tab")
            other.get_by_label("Rename").click(force=True)
            other.get_by_label("New title").fill("Sums")
            other.get_by_label("New title").press("Enter")
            other.locator("#conversations .title", has_text="Sums").wait_for()
        one.finished(2)
        (stored,) = one.page.evaluate(STORED)
        assert (stored["title"], stored["system"]) == ("Sums", "Be short.")
        assert len(questions(one.page)[0]) == 2
        one.page.locator("#conversations .title", has_text="Sums").wait_for()
        one.check()


def test_settings_of_another_tab_are_kept(browser: Any, tmp_path):
    change = "async (changed) => (await import('./page/store.js')).saveSettings(changed)"
    read = "async () => (await import('./page/store.js')).settings"
    with server_of_tasks(tmp_path) as server, visit(browser, server, 1280) as one:
        one.ask(QUESTION)
        one.finished(1)
        other = opened_again(one, n=1)
        one.page.evaluate(change, {"theme": "dark", "options": {"seed": 1}})
        other.evaluate(change, {"options": {"top_k": 5}})
        one.page.evaluate(change, {"system": "Be short.", "options": {"seed": 2}})
        assert one.page.evaluate(read)["options"] == {"seed": 2}  # this tab goes on as it was
        other.reload()
        stored = other.evaluate(read)
        assert (stored["theme"], stored["system"]) == ("dark", "Be short.")
        assert stored["options"] == {"seed": 2, "top_k": 5}
        other.evaluate(change, {"options": {}})
        one.page.reload()
        assert one.page.evaluate(read)["options"] == {}


def test_a_conversation_that_is_deleted_while_it_is_written_stays_deleted(browser: Any, tmp_path):
    with server_of_tasks(tmp_path) as server, visit(browser, server, 1280) as one:
        page = one.page
        with server.hold():
            one.ask(QUESTION)
            page.locator(".live", has_text="writing").wait_for()
            page.get_by_label("Delete").click(force=True)
            page.get_by_text("is deleted.").wait_for()
            page.wait_for_function("async () => !(await import('./page/reply.js')).runningIn({})")
        page.wait_for_timeout(500)  # in which the stopped reply was stored
        assert page.evaluate(STORED) == []
        page.get_by_role("button", name="Undo").click()
        page.locator("#conversations .title").wait_for()
        assert len(page.evaluate(STORED)) == 1
        one.check()


def test_days_are_those_of_the_person_and_a_failed_reply_may_have_no_error(
    browser: Any, server: Served
):
    file = conversation_file("half")
    file["conversations"][0]["nodes"]["assistant0"]["state"] = "failed"
    with visit(browser, server, 1280) as one:
        page = one.page
        zone = {"timezoneId": "America/Los_Angeles"}
        page.context.new_cdp_session(page).send("Emulation.setTimezoneOverride", zone)
        clock = "(time) => { Date.now = () => Date.parse(time); }"
        page.evaluate(clock, "2026-11-27T23:00:00Z")
        one.load(file)
        page.get_by_text("The reply failed.").wait_for()
        for now, group in (
            ("2026-11-28T07:00:00Z", "Today"),
            ("2026-11-28T09:00:00Z", "Yesterday"),
        ):
            page.evaluate(clock, now)
            page.locator("#find").press("x")
            page.locator("#find").fill("")
            assert page.locator("#conversations .age").all_inner_texts() == [group]
        one.check()


def test_a_browser_without_room_is_told(browser: Any, tmp_path):
    """Once, until something is stored again; a reply is stored as soon as there is room."""
    with server_of_tasks(tmp_path) as server, visit(browser, server, 1280) as one:
        page = one.page
        told = page.locator("#toast", has_text="This conversation is not stored")
        hide = "document.getElementById('toast').hidden = true"
        for n in (1, 2):
            page.evaluate(FULL_AFTER.format(0))
            with server.hold():
                one.ask(QUESTION)
                told.wait_for()
                assert ".." not in told.inner_text()
                page.evaluate(hide)
                writes(page)
                if n == 1:
                    page.evaluate(FULL_AFTER.format(99))
            assert "33" in one.finished(n)
            (stored,) = page.evaluate(STORED)
            assert [node["role"] for node in stored["nodes"].values()] == ["user", "assistant"]
            assert page.locator("#toast").is_hidden()


def test_an_import_without_room_says_how_much_is_stored(browser: Any, server: Served):
    file = conversation_file("a")
    file["conversations"] *= 3
    with visit(browser, server, 1280) as one:
        one.page.evaluate(FULL_AFTER.format(1))
        data = json.dumps(file).encode()
        payload = {"name": "x.json", "mimeType": "application/json", "buffer": data}
        one.page.set_input_files("#import-file", payload)
        one.page.locator("#toast", has_text="1 of 3 conversations imported:").wait_for()
        one.page.locator("#conversations .title").wait_for()
        assert len(one.page.evaluate(STORED)) == 1
