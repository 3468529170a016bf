// The server as the child of a program in JavaScript: its start, a reply while it is written, Ctrl-C
// ends the reply, and the server ends with this program, however that ends.
//
//     node examples/embed_child.mjs [QUESTION]      # Node 18 or newer; TGR_LOCAL=PATH of tgr-local
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";

const key = randomUUID();
const server = spawn(process.env.TGR_LOCAL ?? "tgr-local", ["serve", "--port", "0", "--exit-on-eof"], {
  env: { ...process.env, TGR_API_KEY: key }, // other programs see a command line, but no environment
  stdio: ["pipe", "ignore", "pipe"], // the server ends when this program closes its stdin, or is killed
  detached: true, // a Ctrl-C in the terminal is for this program
});
const ended = new Promise((resolve) => server.once("close", resolve));

/** The server's address, once the model is there. stderr is read to the end: a full pipe would block it. */
const address = await new Promise((resolve, reject) => {
  let url, last;
  createInterface({ input: server.stderr })
    .on("line", (line) => {
      url ??= line.match(/listening on (http\S+)/)?.[1];
      if (line.includes(" is ready")) resolve(url);
      last = line;
    })
    .on("close", () => reject(new Error(last)));
  server.once("error", reject); // there is no such program
});

const cancel = new AbortController();
process.once("SIGINT", () => cancel.abort()); // closes the connection, which ends the reply
try {
  const response = await fetch(`${address}/v1/chat/completions`, {
    method: "POST",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: process.argv[2] ?? "What is 12 + 30?" }], stream: true }),
    signal: cancel.signal,
  });
  if (!response.ok) throw new Error(await response.text());
  let rest = "";
  for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + part).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data: {"))) {
      const event = JSON.parse(line.slice(6)); // delta.reasoning_content has the thinking
      if (event.error) throw new Error(event.error.message);
      process.stdout.write(event.choices[0]?.delta.content ?? "");
    }
  }
} catch (error) {
  if (!cancel.signal.aborted) throw error;
}
console.log();
server.stdin.end();
process.exitCode = await ended;
