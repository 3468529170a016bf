// The server's API: requests with the key, errors as one class, event streams.

import { apiKey } from "./store.js";

/** A request that failed; `status` is 0 when the server did not answer at all. */
export class Problem extends Error {
  constructor(status, message, code = null, about = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.about = about; // what else the server says
  }
}

async function send(address, body, signal) {
  const key = apiKey.get();
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(address, {
      method: body ? "POST" : "GET",
      headers,
      signal,
      body: body && JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer. Check that “tgr-local serve” is running.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  try {
    const { message, code, ...about } = (await response.json()).error;
    return new Problem(response.status, message, code, about);
  } catch {
    return new Problem(response.status, `The server answers with status ${response.status}.`);
  }
}

export const get = async (address) => (await send(address)).json();
export const post = async (address, body, signal) => (await send(address, body, signal)).json();

/** Streams a chat completion; `take` gets every chunk. Throws Problem, and AbortError by `signal`. */
export async function stream(body, signal, take) {
  const response = await send("v1/chat/completions", { ...body, stream: true }, signal);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let isWhole = false;
  for (;;) {
    const { done, value } = await read(reader);
    if (done) break;
    const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = dataOf(event);
      if (data === "[DONE]") isWhole = true;
      else if (data) take(withoutError(JSON.parse(data)));
    }
  }
  if (!isWhole) throw new Problem(0, "The connection ended in the middle of the reply.");
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The connection ended in the middle of the reply.");
  }
}

/** The data of an event; empty for a comment. */
function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data: "));
  return lines.map((line) => line.slice(6)).join("\n");
}

function withoutError(part) {
  if (part.error) throw new Problem(part.error.code === "cancelled" ? 503 : 500, part.error.message, part.error.code);
  return part;
}
