// Calls a running site with the clients that npm has, and prints what they made of its answers (E4).
// usage: node clients.mjs <folder with node_modules> <site> <api key>
import { createRequire } from "node:module";
import { join } from "node:path";

const [folder, site, key] = process.argv.slice(2);
const load = createRequire(join(folder, "package.json"));
const { DefaultChatTransport, readUIMessageStream } = load("ai");
const OpenAI = load("openai");

async function whole(stream) {
  let last = null;
  const problems = [];
  for await (const message of readUIMessageStream({ stream, onError: (error) => problems.push(String(error)) })) last = message;
  return { problems, parts: last.parts };
}

function user(text) {
  return { id: "m1", role: "user", parts: [{ type: "text", text }] };
}

const transport = new DefaultChatTransport({ api: `${site}/api/ai/chat`, headers: { Authorization: `Bearer ${key}` } });
const answer = await whole(
  await transport.sendMessages({ chatId: "from-node", messages: [user("What time is it?")], trigger: "submit-message" }),
);
const idle = await transport.reconnectToStream({ chatId: "from-node" });

const client = new OpenAI({ baseURL: `${site}/v1`, apiKey: key });
let streamed = "";
const chunks = await client.chat.completions.create({
  model: "standard",
  messages: [{ role: "user", content: "Hello" }],
  stream: true,
});
for await (const chunk of chunks) streamed += chunk.choices[0]?.delta?.content ?? "";
const completion = await client.chat.completions.create({ model: "standard", messages: [{ role: "user", content: "Hello" }] });
const first = await client.responses.create({ model: "standard", input: "Hello" });
const second = await client.responses.stream({ model: "standard", input: "Again", previous_response_id: first.id }).finalResponse();
const refused = await client.chat.completions.create({ model: "none", messages: [] }).catch((error) => error.status);

console.log(
  JSON.stringify({
    answer,
    idle,
    streamed,
    whole: completion.choices[0].message.content,
    first: first.output_text,
    second: second.output_text,
    refused,
  }),
);
