// The list of conversations: choose, rename, delete, search, files.

import { exported, imported, matches, set, titleOf } from "./conversation.js";
import { $, button, h, toast } from "./dom.js";
import { runningIn } from "./reply.js";
import * as store from "./store.js";

/** `actions`: open(conversation), removed(conversation). */
export class Sidebar {
  constructor(actions) {
    this.actions = actions;
    this.conversations = [];
    this.current = null;
    $("find").addEventListener("input", () => this.draw());
    $("find").addEventListener("keydown", (event) => {
      if (event.key === "Enter") $("conversations").querySelector("button")?.click();
    });
    fill($("export"), button("export", "", null, { text: "Export" }), () => this.save());
    fill($("import"), button("import", "", null, { text: "Import" }), () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.read());
  }

  /** Reads the list again. */
  async refresh(current = this.current) {
    this.current = current;
    const stored = await store.all();
    // the one on the screen and those being written are newer here than in the storage
    this.conversations = stored.map((one) => (one.id === current?.id ? current : runningIn(one)?.conversation ?? one));
    this.draw();
  }

  draw() {
    const words = $("find").value.trim();
    const found = words ? this.conversations.filter((one) => matches(one, words)) : this.conversations;
    const items = [];
    let group = "";
    for (const one of found) {
      if (ageOf(one) !== group) items.push(h("li", { class: "age" }, (group = ageOf(one))));
      items.push(this.item(one));
    }
    const nothing = words ? "Nothing found." : "Conversations appear here. They stay in this browser.";
    $("conversations").replaceChildren(...(items.length ? items : [h("li", { class: "dim" }, nothing)]));
  }

  item(conversation) {
    const isCurrent = conversation.id === this.current?.id;
    const open = h(
      "button", { type: "button", class: "title", "aria-current": isCurrent ? "true" : null, onclick: () => this.actions.open(conversation) },
      conversation.title || "New conversation",
    );
    const tools = h(
      "span", { class: "tools" },
      button("edit", "Rename", () => this.rename(item, conversation)),
      button("export", "Export this conversation", () => download([conversation])),
      button("trash", "Delete", () => this.remove(conversation)),
    );
    const item = h("li", { class: isCurrent ? "current" : null }, open, tools);
    open.addEventListener("dblclick", () => this.rename(item, conversation));
    return item;
  }

  rename(item, conversation) {
    const field = h("input", { class: "rename", "aria-label": "New title", value: conversation.title });
    let isDone = false;
    const done = async (title) => {
      if (isDone) return;
      isDone = true;
      if (title && title !== conversation.title) {
        set(conversation, "title", titleOf(title));
        await store.put(conversation);
      }
      await this.refresh();
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") done(field.value.trim());
      else if (event.key === "Escape") done("");
    });
    field.addEventListener("blur", () => done(field.value.trim()));
    item.replaceChildren(field);
    field.select();
  }

  async remove(conversation) {
    runningIn(conversation)?.stop();
    await store.remove(conversation.id);
    this.actions.removed(conversation);
    await this.refresh();
    toast(`“${conversation.title}” is deleted.`, "Undo", async () => {
      await store.keep(conversation);
      await this.refresh();
    });
  }

  save() {
    if (this.conversations.length) download(this.conversations);
    else toast("There is no conversation to export.");
  }

  async read() {
    const [file] = $("import-file").files;
    $("import-file").value = "";
    try {
      const found = imported(await file.text());
      let n = 0;
      while (n < found.length && (await store.keep(found[n]))) n += 1;
      const all = `${found.length} ${found.length === 1 ? "conversation" : "conversations"}`;
      toast(n < found.length ? `${n} of ${all} imported: the browser could not store the rest.` : `${all} imported.`);
    } catch (error) {
      toast(error.message);
    }
    await this.refresh();
  }
}

function fill(target, made, onclick) {
  target.replaceChildren(...made.childNodes);
  target.addEventListener("click", onclick);
}

function ageOf({ updated }) {
  const midnight = (time) => new Date(time).setHours(0, 0, 0, 0);
  const days = Math.round((midnight(Date.now()) - midnight(updated)) / 864e5); // some have 23 hours
  if (days < 1) return "Today";
  if (days < 2) return "Yesterday";
  return days < 8 ? "Last 7 days" : "Older";
}

function download(conversations) {
  const url = URL.createObjectURL(new Blob([exported(conversations)], { type: "application/json" }));
  const name = `tgr-local-${new Date().toISOString().slice(0, 10)}.json`;
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
