"""Tasks that a user of the page does, driven in Chromium; each checks what is on the screen.

    python tests/page_tasks.py [--images docs/images] [--model trained.gguf]

runs them at 1280 and 390 pixels on a server with the embedded model, prints a table, and saves
pictures. `test_page` runs the same tasks. With a trained model there is one task, a conversation.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_questions import QUESTION_TASKS
from page_visits import QUESTION, WIDTHS, Visit, browser, conversation_file, server_of_tasks, visit

SPREAD = """def mean(values):
    return sum(values) / len(values)


def spread(values):
    middle = mean(values)
    return max(abs(value - middle) for value in values)
"""
CODE = "def double(x):\n    return 2 * x  # <b>\n"
SHOWN = f"""Two ways to write it, with $f(x) = 2x$:

```python
{CODE}```

| x | f(x) |
|--:|-----:|
| 1 | 2 |
| 7 | 14 |

The sum of the first $n$ values is

$$
\\sum_{{i=1}}^n f(i) = n(n + 1)
$$

and for $n = 4$ that is $\\boxed{{20}}$."""


# ---- the tasks ----


def ask(visit: Visit) -> None:
    page = visit.page
    page.locator(".example").first.wait_for()
    visit.picture("empty")
    assert page.evaluate("document.activeElement.id") == "question"
    page.keyboard.type("x")
    page.keyboard.press("Shift+Enter")
    assert page.input_value("#question") == "x\n"
    visit.ask(QUESTION)
    assert "33" in visit.finished(1)
    reply = visit.replies().first
    assert reply.locator("math menclose").count() == 1  # the box of the answer is a formula
    assert reply.locator(".thinking").get_attribute("open") is None  # folded when it is over
    reply.locator(".thinking summary").click()
    assert "7*3=21" in reply.locator(".thought").inner_text()
    reply.locator(".thinking summary").click()
    cost = reply.locator(".cost").inner_text()
    assert re.search(r"\d+ tokens · [\d.]+ s", cost), cost
    assert page.title().startswith(QUESTION)


def follow_up(visit: Visit) -> None:
    visit.ask(QUESTION)
    visit.finished(1)
    visit.ask("Solve 3x + 5 = 20.")
    visit.finished(2)
    roles = [message["role"] for message in visit.sent[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert visit.sent[-1]["messages"][1]["content"].strip()
    visit.picture("conversation")


def stop(visit: Visit) -> None:
    page, server = visit.page, visit.server

    def make_long(route: Any) -> None:
        body = route.request.post_data_json
        endless = {
            "grammar": 'root ::= a{9}\na ::= "ab c "{2000}',
            "thinking": False,
            "max_chunks": 1000,
        }
        body["tgr"] |= {"method": "markov", **endless}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", make_long)
    for key in ("", "Escape"):
        visit.ask("a long one")
        visit.replies().last.locator(".live").wait_for()
        server.until(lambda: server.gauge("tgr_running") == 1)
        if key:
            page.keyboard.press(key)
        else:
            page.click("#stop")
        visit.replies().last.get_by_text("Stopped.").wait_for()
        server.until(server.is_free)
        assert page.locator("#send").is_visible()


def regenerate(visit: Visit) -> None:
    visit.ask("Use 3, 7, 9 and 50 to make 141.")
    first = visit.finished(1)
    reply = visit.replies().first
    thought = reply.locator(".thought").text_content()
    reply.locator(".again").click()
    visit.page.get_by_text("2 / 2").wait_for()
    visit.finished(1)
    assert visit.sent[0]["messages"] == visit.sent[1]["messages"]
    reply.get_by_label("Previous variant").click()
    visit.page.get_by_text("1 / 2").wait_for()
    visit.finished(1)
    assert visit.replies().first.locator(".text").inner_text() == first
    assert visit.replies().first.locator(".thought").text_content() == thought


def edit(visit: Visit) -> None:
    page = visit.page
    visit.ask(QUESTION)
    visit.finished(1)
    visit.ask("Solve 3x + 5 = 20.")
    visit.finished(2)
    page.focus("#question")
    page.keyboard.press("ArrowUp")  # the last question
    assert page.locator(".editor").input_value() == "Solve 3x + 5 = 20."
    page.keyboard.press("Escape")
    first = page.locator(".message.user").first
    first.hover()
    first.get_by_label("Edit the question").click()
    page.locator(".editor").fill("What is 5 * 5?")
    page.keyboard.press("Enter")
    page.get_by_text("2 / 2").wait_for()
    assert "25" in visit.finished(1)
    assert len(visit.sent[-1]["messages"]) == 1
    first.get_by_label("Previous variant").click()  # the old way, with both its turns
    assert "5" in visit.finished(2)
    assert "33" in visit.replies().first.inner_text()


def copy_code(visit: Visit) -> None:
    page = visit.page
    visit.load(conversation_file(SHOWN, question="How do I double a number?"))
    page.locator(".code .hl-k").first.wait_for()
    assert page.locator(".text table tr").count() == 3 and page.locator("math").count() == 5
    visit.picture("markdown")
    page.locator(".code .copy").click()
    page.locator(".code .copy.done").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == CODE.rstrip("\n")
    page.get_by_label("Copy the reply").click()
    page.locator(".actions .done").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == SHOWN


def reload_keeps(visit: Visit) -> None:
    page = visit.page
    visit.ask(QUESTION)
    text = visit.finished(1)
    page.keyboard.press("Control+k")
    assert page.locator(".example").count() == 4
    visit.ask("What is 5 * 5?")
    visit.finished(1)
    page.reload()
    assert "25" in visit.finished(1)
    visit.list()
    titles = page.locator("#conversations .title")
    assert titles.all_text_contents() == ["What is 5 * 5?", QUESTION]
    page.fill("#find", "33")
    assert titles.all_text_contents() == [QUESTION]
    visit.picture("list")
    titles.first.click()
    assert visit.finished(1) == text
    visit.list()
    page.fill("#find", "")
    item = page.locator("#conversations li.current")
    item.get_by_label("Rename").click()
    page.locator(".rename").fill("sums")
    page.keyboard.press("Enter")
    page.locator("#conversations .title", has_text="sums").wait_for()
    with page.expect_download() as download:
        page.locator("#conversations li.current").get_by_label("Export").click()
    saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert [conversation["title"] for conversation in saved["conversations"]] == ["sums"]
    page.locator("#conversations li.current").get_by_label("Delete").click()
    page.get_by_text("Undo").wait_for()
    assert titles.all_text_contents() == ["What is 5 * 5?"]
    page.get_by_text("Undo").click()
    page.locator("#conversations .title", has_text="sums").wait_for()


def settings(visit: Visit) -> None:
    page = visit.page
    page.click("#open-settings")
    described = page.locator(".field", has_text="candidate anchors tried at a boundary")
    number = described.locator("input")
    assert number.get_attribute("placeholder") == "8" and number.get_attribute("max") == "255"
    visit.picture("settings")
    number.fill("3")
    number.blur()
    page.locator("#setting-temperature").fill("-1")  # below its bound: not taken
    page.locator("#setting-temperature").blur()
    page.locator("#setting-temperature").fill("")
    page.locator("#setting-System-prompt").fill("Be short.")
    page.locator("#setting-System-prompt").blur()
    page.locator("#settings").get_by_text("All options", exact=True).click()
    page.get_by_label("Filter the options").fill("lambda_b")
    assert page.locator("dialog details .field:visible").count() == 1
    page.locator("#settings").get_by_text("Done", exact=True).click()
    page.select_option("#method", "tgr-token")
    visit.ask(QUESTION)
    visit.finished(1)
    body = visit.sent[-1]
    assert body["tgr"] == {"progress": True, "method": "tgr-token", "n_candidates": 3}
    assert body["messages"][0] == {"role": "system", "content": "Be short."}
    page.evaluate(
        """() => {
            const saved = JSON.parse(localStorage.getItem("tgr-local.settings"));
            saved.options.min_gap = 0.5;  // which has left the search
            saved.options.vote_weight = "probe";  // whose value has left
            localStorage.setItem("tgr-local.settings", JSON.stringify(saved));
        }"""
    )
    page.reload()
    page.locator("#method option[value='markov']").wait_for(state="attached")
    assert page.input_value("#method") == "tgr-token"
    visit.ask(QUESTION)
    visit.finished(2)
    assert visit.sent[-1]["tgr"] == body["tgr"]
    page.click("#open-settings")
    page.locator("#settings").get_by_text("Reset all options").click()
    assert page.locator("#setting-n_candidates").input_value() == ""
    page.keyboard.press("Escape")
    assert not page.locator("#settings").is_visible()


def dark(visit: Visit) -> None:
    page = visit.page

    def brightness(of: str, style: str) -> float:
        script = (
            "([of, what]) => { const c = document.createElement('canvas').getContext('2d');"
            "c.fillStyle = getComputedStyle(document.querySelector(of))[what]; c.fillRect(0,0,1,1);"
            "return [...c.getImageData(0,0,1,1).data].slice(0,3).reduce((a, b) => a + b) / 765 }"
        )
        return float(page.evaluate(script, [of, style]))

    assert brightness("body", "backgroundColor") > 0.9
    page.emulate_media(color_scheme="dark")  # "auto" follows the system
    assert brightness("body", "backgroundColor") < 0.2 < 0.8 < brightness("body", "color")
    page.emulate_media(color_scheme="light")
    page.click("#theme")
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert brightness("body", "backgroundColor") < 0.2
    visit.load(conversation_file(SHOWN, question="How do I double a number?"))
    page.locator(".code .hl-k").first.wait_for()
    assert brightness(".code .hl-k", "color") > 0.5
    visit.picture("dark")
    page.reload()
    assert brightness("body", "backgroundColor") < 0.2


def fold_out(visit: Visit) -> None:
    visit.ask("Use 3, 7, 9 and 50 to make 141.")
    visit.finished(1)
    reply = visit.replies().first
    reply.get_by_text("How this reply was found").click()
    strips = reply.locator(".strip button")
    strips.first.wait_for()
    assert strips.count() >= 2
    for i in range(strips.count()):
        assert strips.nth(i).locator(".bars i").count() == 8
        assert strips.nth(i).locator(".bars i.chosen").count() == 1
    strips.nth(1).click()
    rows = reply.locator(".detail tbody tr:not(.ahead)")
    assert rows.count() == 8
    numbers = [[float(n) for n in row.split()[-4:]] for row in rows.all_inner_texts()]
    chosen = [k for k in range(8) if "chosen" in (rows.nth(k).get_attribute("class") or "")]
    assert [numbers[k][3] for k in chosen] == [max(score for *_, score in numbers)]
    for v, bumpiness, uniformity, score in numbers:
        assert abs(v - 0.5 * bumpiness - 0.5 * uniformity - score) < 3e-4
    assert reply.locator(".detail tr.ahead").count() == 8  # what each looked ahead
    assert reply.locator(".detail tr.ahead td").first.inner_text().strip()
    legend = reply.locator(".legend li:not(:has-text('reused')) b").all_inner_texts()
    total = re.search(r"([\d,]+) forward tokens", reply.locator(".fold-out .total").inner_text())
    assert total and sum(int(n.replace(",", "")) for n in legend) == int(total[1].replace(",", ""))
    n = strips.count()
    assert reply.locator(".tree circle:not(.taken):not(.start)").count() == 7 * n
    reply.locator(".tree circle:not(.taken):not(.start)").first.click()
    reply.locator(".detail tr.pointed").first.wait_for()
    chunks = []
    for i in range(n):
        strips.nth(i).click()
        chunks.append(reply.locator(".detail blockquote").text_content())
    thought = reply.locator(".thought").text_content() or ""
    assert thought.strip() in "".join(chunks)
    if visit.images:
        strips.nth(0).click()
        visit.page.set_viewport_size({"width": visit.width, "height": 1600})
        reply.locator(".fold-out").screenshot(path=visit.images / f"page-search-{visit.width}.png")


def trained(visit: Visit) -> None:
    file = {"name": "spread.py", "mimeType": "", "buffer": SPREAD.encode()}
    visit.page.set_viewport_size({"width": visit.width, "height": 1060})
    visit.page.select_option("#method", "base")
    visit.page.set_input_files("#attach-file", file)
    visit.page.locator("#attached li").wait_for()
    visit.ask("What does spread do? Answer in one sentence.")
    visit.finished(1)
    visit.ask("Write a short test of it.")
    visit.finished(2)
    visit.picture("trained")


TASKS: tuple[Callable[[Visit], None], ...] = (
    ask, follow_up, stop, regenerate, edit, copy_code, reload_keeps, settings, dark, fold_out,
    *QUESTION_TASKS,
)  # fmt: skip


def _place(error: Exception) -> str:
    """The line of a task that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    line = [frame for frame in frames if Path(frame.filename).name.startswith("page_")][-1]
    return f"in line {line.lineno} of {Path(line.filename).name}, {line.line}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, help="folder for pictures")
    parser.add_argument("--model", type=Path, help="a trained model, for a picture")
    parser.add_argument("--only", help="names of tasks, with commas between them")
    arguments = parser.parse_args()
    only = (arguments.only or "").split(",")
    tasks = [task for task in TASKS if not arguments.only or task.__name__ in only]
    widths = list(WIDTHS)
    if arguments.model:
        tasks, widths = [trained], widths[:1]
    if arguments.images:
        arguments.images.mkdir(parents=True, exist_ok=True)
    failed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        server_of_tasks(Path(folder), arguments.model) as server,
        browser() as chromium,
    ):
        print(f"Chromium {chromium.version}")
        for width in widths:
            for task in tasks:
                start = time.monotonic()
                outcome = "done"
                with visit(chromium, server, width, arguments.images) as visited:
                    try:
                        task(visited)
                        visited.check()
                    except Exception as error:
                        failed += 1
                        outcome = f"FAILED {_place(error)}: {error}"
                print(
                    f"{width:5} px  {task.__name__:14} {time.monotonic() - start:5.1f} s  {outcome}"
                )
    n_tasks = len(widths) * len(tasks)
    print(f"{n_tasks - failed} of {n_tasks} tasks done")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
