"""Tasks of `page_tasks` about questions and what becomes of them: files, long texts, Continue."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from page_visits import QUESTION, Visit, conversation_file

CHAT = "**/v1/chat/completions"
LONG_NAME = "qwen2.5-coder-1.5b-instruct-of-a-long-name-q4_k_m"


def _file(name: str, data: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "", "buffer": data}


def attach(visit: Visit) -> None:
    page = visit.page
    assert not page.locator("#send").is_enabled()
    names = page.locator("#attached .name")
    page.set_input_files(
        "#attach-file", [_file("a.md", b"\xef\xbb\xbf```\nx\n```"), _file("b", b"b")]
    )
    names.nth(1).wait_for()
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(["one\\ntwo\\n"], "dropped.txt"));
          for (const kind of ["dragover", "drop"])
            document.body.dispatchEvent(
              new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    names.nth(2).wait_for()
    for data, why in {
        b"\x89PNG\r\n\x00": "not a text file", b"\xff\xfe\xfd": "not a text file",
        b"a\0b": "not a text file", b"x" * (1 << 20): "1 MiB together",
    }.items():  # fmt: skip
        page.set_input_files("#attach-file", _file("odd.bin", data))
        page.locator("#toast", has_text=why).wait_for()
        page.locator("#toast").evaluate("(toast) => { toast.hidden = true; }")
    page.get_by_label("Remove b", exact=True).click()
    assert names.all_inner_texts() == ["a.md", "dropped.txt"]
    visit.ask("What is 5 * 5?")
    visit.finished(1)
    content = "a.md:\n````\n```\nx\n```\n````\n\ndropped.txt:\n```\none\ntwo\n```\n\nWhat is 5 * 5?"
    assert visit.sent[-1]["messages"] == [{"role": "user", "content": content}]
    assert not page.locator("#attached").is_visible()
    page.reload()
    page.locator("#method option[value='markov']").wait_for(state="attached")  # then it is redrawn
    blocks = page.locator(".message.user .file")
    assert re.fullmatch(r"dropped\.txt\s+8 bytes", blocks.nth(1).inner_text())  # folded
    blocks.nth(1).locator("summary").press("Enter")
    page.locator(".file pre").wait_for()
    assert page.locator(".file pre").inner_text() == "one\ntwo\n"
    assert page.locator(".bubble").inner_text() == "What is 5 * 5?"
    page.focus("#question")
    page.keyboard.press("ArrowUp")
    page.locator(".message.user").get_by_label("Remove a.md").click()
    page.keyboard.press("Enter")  # the same text with one file less
    page.get_by_text("2 / 2").wait_for()
    visit.finished(1)
    fewer = content[content.index("dropped.txt") :]
    assert visit.sent[-1]["messages"] == [{"role": "user", "content": fewer}]


def a_file_alone(visit: Visit) -> None:
    page = visit.page
    page.set_input_files("#attach-file", _file("sum.txt", QUESTION.encode()))
    page.locator("#attached li").wait_for()
    page.click("#send")
    visit.finished(1)
    assert visit.sent[-1]["messages"][0]["content"] == f"sum.txt:\n```\n{QUESTION}\n```"
    assert page.title().startswith("sum.txt")


def drafts(visit: Visit) -> None:
    """What is written and attached belongs to its conversation; those without a message share
    one draft."""
    page, names = visit.page, visit.page.locator("#attached .name")

    def shown() -> tuple[str, list[str]]:
        return page.input_value("#question"), names.all_inner_texts()

    def begin() -> None:
        visit.list()
        page.click("#new")

    def go_to(title: str) -> None:
        visit.list()
        page.locator("#conversations .title", has_text=title).first.click()

    page.fill("#question", "not sent yet")
    page.set_input_files("#attach-file", _file("new.txt", b"n"))
    names.first.wait_for()
    visit.load(conversation_file("one reply"))
    assert shown() == ("", [])
    page.fill("#question", "about the reply")
    page.set_input_files("#attach-file", [_file("a.txt", b"a"), _file("b.txt", b"b")])
    names.nth(1).wait_for()
    page.get_by_label("Remove a.txt").click()
    begin()
    names.first.wait_for()
    assert shown() == ("not sent yet", ["new.txt"])
    page.keyboard.press("Control+k")  # another new one has the same draft
    assert shown() == ("not sent yet", ["new.txt"])
    go_to("imported")
    assert shown() == ("about the reply", ["b.txt"])
    begin()
    page.press("#question", "Enter")
    visit.finished(1)
    assert visit.sent[-1]["messages"][-1]["content"] == "new.txt:\n```\nn\n```\n\nnot sent yet"
    assert shown() == ("", [])
    go_to("imported")
    assert shown() == ("about the reply", ["b.txt"])
    go_to("not sent yet")
    assert shown() == ("", [])
    begin()
    assert shown() == ("", [])


def _stopped(visit: Visit, text: str, part: str) -> None:
    """Asks, and stops the reply after its first piece of `part`, a class."""
    with visit.server.hold():
        visit.ask(text)
        visit.replies().first.locator(part, has_text=re.compile(r"\S")).wait_for()
        visit.page.keyboard.press("Escape")
        visit.replies().first.get_by_text("Stopped.").wait_for()
        visit.server.until(visit.server.is_free)


def _cost(visit: Visit) -> tuple[int, float]:
    """Tokens and seconds of the first reply, as the line below it has them."""
    line = visit.replies().first.locator(".cost").inner_text()
    match = re.match(r"([\d,]+) tokens · ([\d.]+) s", line)
    assert match, line
    return int(match[1].replace(",", "")), float(match[2])


def go_on(visit: Visit) -> None:
    """A reply that was stopped says what it took, and goes on."""
    page, reply = visit.page, visit.replies().first

    def without_thinking(route: Any) -> None:
        body = route.request.post_data_json
        route.continue_(post_data=json.dumps({**body, "tgr": {**body["tgr"], "thinking": False}}))

    page.route(CHAT, without_thinking)
    _stopped(visit, "What can you do?", ".text")
    n_tokens, seconds = _cost(visit)
    assert n_tokens >= 1
    used = page.locator("#context").inner_text()
    stopped = page.locator(".text").text_content().strip()
    reply.get_by_role("button", name="Continue").click()
    text = visit.finished(1)
    body = visit.sent[-1]
    assert body["continue_final_message"] is True and len(visit.sent) == 2
    question, last = body["messages"]
    assert question == {"role": "user", "content": "What can you do?"}
    assert last["role"] == "assistant" and last["content"].strip() == stopped
    assert text.startswith(stopped) and len(text) > len(stopped)
    assert reply.get_by_text("Stopped.").count() == 0
    more_tokens, more_seconds = _cost(visit)
    assert more_tokens > n_tokens and more_seconds >= seconds
    assert page.locator("#context").inner_text() != used
    page.reload()
    assert visit.finished(1) == text and _cost(visit) == (more_tokens, more_seconds)


def go_on_thinking(visit: Visit) -> None:
    """A reply that was stopped in its thinking goes on with that."""
    page, reply = visit.page, visit.replies().first
    _stopped(visit, QUESTION, ".thought")
    thought = str(reply.locator(".thought").text_content())
    assert not reply.locator(".text").inner_text()
    assert _cost(visit)[0] >= 1
    reply.get_by_role("button", name="Continue").click()
    assert visit.finished(1)
    last = visit.sent[-1]["messages"][-1]
    assert last == {"role": "assistant", "content": "", "reasoning_content": thought}
    thoughts = str(reply.locator(".thought").text_content())
    assert thoughts.startswith(thought) and len(thoughts) > len(thought)
    assert page.locator(".message").count() == 2


def cut(visit: Visit) -> None:
    """A reply that was cut at its limit goes on; once another question follows, it stays."""
    page, reply = visit.page, visit.replies().first
    page.click("#open-settings")
    page.locator("#setting-max_tokens").fill("8")
    page.locator("#setting-max_tokens").blur()
    page.keyboard.press("Escape")
    page.select_option("#method", "base")
    visit.ask("Use 3, 7, 9 and 50 to make 141.")
    visit.finished(1)
    reply.get_by_text("cut at its limit").wait_for()
    assert reply.get_by_role("button", name="Continue").count() == 1
    visit.ask(QUESTION)
    visit.finished(2)
    assert reply.get_by_role("button", name="Continue").count() == 0


def context(visit: Visit) -> None:
    """The gauge has what the server counted of what it can hold, in each conversation its own."""
    page, gauge = visit.page, visit.page.locator("#context")
    most = visit.server.client.get("/props").json()["default_generation_settings"]["n_ctx"]
    assert not gauge.is_visible()

    def shown() -> int:
        told = re.fullmatch(r"([\d,]+) of ([\d,]+) tokens", gauge.inner_text())
        assert told and int(told[2].replace(",", "")) == most
        assert gauge.locator("[role=meter]").get_attribute("aria-valuemax") == str(most)
        return int(told[1].replace(",", ""))

    visit.ask(QUESTION)
    visit.finished(1)
    first = shown()
    reply = visit.replies().first.locator(".cost").inner_text()
    assert first > int(reply.split()[0])  # the prompt is in it
    visit.ask("What is 5 * 5?")
    visit.finished(2)
    second = shown()
    assert first < second < most
    page.keyboard.press("Control+k")
    assert not gauge.is_visible()
    visit.list()
    page.locator("#conversations .title").first.click()
    assert shown() == second


def long_question(visit: Visit) -> None:
    page = visit.page
    bubble = page.locator(".bubble").first
    for text in ("\n".join(f"line {i}" for i in range(40)), "word " * 400):
        visit.load(conversation_file("Yes.", question=text))
        low = bubble.bounding_box()["height"]
        more = page.get_by_text("Show all")
        assert more.get_attribute("aria-expanded") == "false"
        more.press("Enter")
        assert bubble.bounding_box()["height"] > 1.3 * low
        assert bubble.inner_text().strip() == text.strip()
        page.get_by_text("Show less").click()
        assert bubble.bounding_box()["height"] == low
    page.keyboard.press("Control+k")
    visit.ask("\n".join(f"{i} + {i}" for i in range(12)))  # as long as it may be
    visit.finished(1)
    assert page.locator(".unfold").count() == 0


def names(visit: Visit) -> None:
    """The model's name is whole where there is room, and told in full where there is none."""
    page = visit.page

    def renamed(route: Any) -> None:
        answer = route.fetch()
        text = answer.text().replace('"embedded"', json.dumps(LONG_NAME))
        route.fulfill(response=answer, body=text)

    page.route("**/props*", renamed)
    page.route("**/v1/models*", renamed)
    page.reload()
    page.locator("#model option", has_text=LONG_NAME).wait_for(state="attached")
    room = page.locator("#model").evaluate(
        """(select) => {
          const style = getComputedStyle(select);
          const canvas = document.createElement("canvas").getContext("2d");
          canvas.font = style.font;
          const sides = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
          return select.clientWidth - sides - canvas.measureText(select.value).width;
        }"""
    )
    assert visit.is_phone or room > -1, f"{-room} pixels of the name are cut"
    assert page.get_attribute("#model", "title") == LONG_NAME
    assert "tgr-latent" in page.get_attribute("#method", "title")


def plain_method(visit: Visit) -> None:
    """Nothing on the page speaks of a search where the method is `base`."""
    page, welcome = visit.page, visit.page.locator(".empty p")
    assert "tries directions" in welcome.inner_text()
    page.select_option("#method", "base")
    assert "directions" not in welcome.inner_text() and "plain sampling" in welcome.inner_text()
    visit.ask(QUESTION)
    text = visit.finished(1)
    reply = visit.replies().first
    reply.get_by_text("How this reply was found").click()
    reply.locator(".search .total").wait_for()
    table = reply.locator(".search").inner_text()
    assert "forward tokens" in table and "no candidates were tried" in table
    assert text not in table and str(reply.locator(".thought").text_content()).strip() not in table


QUESTION_TASKS: tuple[Callable[[Visit], None], ...] = (
    attach, a_file_alone, drafts, go_on, go_on_thinking, cut, context, long_question, names,
    plain_method,
)  # fmt: skip
