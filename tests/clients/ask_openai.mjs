// The `openai` npm package: `node ask_openai.mjs URL KEY MODEL TOKENIZER` does as checks.py says.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";
import { VERSION } from "openai/version";

const [url, key, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0, timeout: 60_000 });

const FREE_MS = 5_000; // after a client has left, everything it held is free
const LONG = 4_000; // tokens, of an answer that nobody waits for
const messages = [{ role: "user", content: "How warm is it in Lanzhou, and how windy?" }];
const WEATHER = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 }, unit: { enum: ["C", "F"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters: WEATHER } }];
const schema = { name: "weather", schema: WEATHER, strict: true };
const asked = { model, messages, max_tokens: 24, temperature: 0 };

const chat = (fields = {}) => client.chat.completions.create({ ...asked, ...fields });

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const told = (chunks) => chunks.map((c) => c.choices[0]?.delta.content ?? "").join("");

function isWeather(text) {
  const value = JSON.parse(text);
  assert.deepEqual(Object.keys(value).sort(), ["city", "unit"]);
  assert.ok(["C", "F"].includes(value.unit));
  return text;
}

async function openRequests() {
  const answer = await fetch(url.replace(/\/v1$/, "/status"), {
    headers: { authorization: `Bearer ${key}` },
  });
  return (await answer.json()).requests.open;
}

async function left() {
  const began = Date.now();
  while ((await openRequests()) > 0) {
    assert.ok(Date.now() - began < FREE_MS, "a request goes on after its client has left");
    await sleep(50);
  }
  return `free after ${((Date.now() - began) / 1000).toFixed(1)} s`;
}

async function models() {
  const names = (await all(client.models.list())).map((m) => m.id);
  assert.deepEqual(names, [model]);
  assert.equal((await client.models.retrieve(model)).object, "model");
  return names.join(", ");
}

async function chatAtOnce() {
  const answer = await chat();
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 24);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 24);
  assert.ok(answer._request_id);
  return `${answer.usage.prompt_tokens} + 24 tokens`;
}

async function chatStreamed() {
  const chunks = await all(await chat({ stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, 24);
  assert.equal(told(chunks), (await chat()).choices[0].message.content);
  return `${chunks.length} chunks, the same text as at once`;
}

async function streamHelper() {
  const stream = client.chat.completions.stream({ ...asked, n: 2, seed: 7, temperature: 1 });
  const final = await stream.finalChatCompletion();
  const atOnce = await chat({ n: 2, seed: 7, temperature: 1 });
  assert.deepEqual(
    final.choices.map((c) => c.message.content),
    atOnce.choices.map((c) => c.message.content),
  );
  return "two choices, put together by the package";
}

async function completions() {
  const fields = { model, prompt: "Once upon a time", max_tokens: 16, temperature: 0 };
  const whole = (await client.completions.create(fields)).choices[0].text;
  const chunks = await all(await client.completions.create({ ...fields, stream: true }));
  assert.equal(chunks.map((c) => c.choices[0].text).join(""), whole);
  const ids = await client.completions.create({ ...fields, prompt: [[100, 101], [102]] });
  assert.equal(ids.usage.prompt_tokens, 3);
  return "at once, streamed, token ids";
}

async function logProbabilities() {
  const answer = await chat({ logprobs: true, top_logprobs: 3 });
  const entries = answer.choices[0].logprobs.content;
  const spelt = Buffer.from(entries.flatMap((e) => e.bytes)).toString();
  assert.equal(spelt, answer.choices[0].message.content);
  assert.ok(entries.every((e) => e.logprob <= 0 && e.top_logprobs.length === 3));
  return `${entries.length} tokens with three alternatives`;
}

async function toolsCalled() {
  const fields = { tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 200 };
  const choice = (await chat(fields)).choices[0];
  assert.equal(choice.finish_reason, "tool_calls");
  const [call] = choice.message.tool_calls;
  isWeather(call.function.arguments);
  const result = { role: "tool", tool_call_id: call.id, content: "21 C" };
  const after = await chat({ messages: [...messages, choice.message, result], tools });
  assert.ok(after.choices[0]);
  const stream = client.chat.completions.stream({ ...asked, ...fields });
  const final = await stream.finalChatCompletion();
  const streamed = final.choices[0].message.tool_calls[0].function;
  assert.equal(streamed.name, "weather");
  isWeather(streamed.arguments);
  return `weather(${call.function.arguments}), its result taken on, streamed`;
}

async function toolRunner() {
  // The package's own loop: it calls the function and asks again with what it gave.
  const given = [];
  const runnable = {
    type: "function",
    function: {
      name: "weather",
      parameters: WEATHER,
      parse: JSON.parse,
      function: ({ city }) => {
        given.push(city);
        return "21 C";
      },
    },
  };
  const runner = client.chat.completions.runTools({
    ...asked,
    max_tokens: 200,
    tools: [runnable],
    tool_choice: { type: "function", function: { name: "weather" } },
  });
  await runner.done();
  assert.equal(given.length, 1);
  return "the function was called once";
}

async function formats() {
  const fields = { response_format: { type: "json_schema", json_schema: schema } };
  const answer = await client.chat.completions.parse({ ...asked, ...fields, max_tokens: 200 });
  isWeather(JSON.stringify(answer.choices[0].message.parsed));
  return answer.choices[0].message.content;
}

async function errors() {
  const seen = [];
  async function refuses(kind, code, param, ask) {
    await assert.rejects(ask, (error) => {
      assert.ok(error instanceof kind, `${error}`);
      assert.deepEqual([error.code, error.param], [code, param]);
      assert.ok(error.requestID);
      seen.push(`${error.status} ${kind.name}`);
      return true;
    });
  }
  const stranger = new OpenAI({ baseURL: url, apiKey: "wrong", maxRetries: 0 });
  await refuses(OpenAI.AuthenticationError, "invalid_api_key", null, () => stranger.models.list());
  const unknown = () => chat({ model: "gpt-4" });
  await refuses(OpenAI.NotFoundError, "model_not_found", "model", unknown);
  for (const stream of [false, true]) {
    const hot = () => chat({ temperature: 9, stream });
    await refuses(OpenAI.BadRequestError, null, "temperature", hot);
  }
  const long = [{ role: "user", content: "word ".repeat(9000) }];
  await refuses(OpenAI.BadRequestError, "context_length_exceeded", "messages", () =>
    chat({ messages: long }),
  );
  return [...new Set(seen)].join(", ");
}

async function leaving() {
  const stream = await chat({ stream: true, max_tokens: LONG, ignore_eos: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    assert.equal(await openRequests(), 1);
    break;
  }
  await left();
  const controller = new AbortController();
  const waiting = client.chat.completions.create(
    { ...asked, max_tokens: LONG, ignore_eos: true },
    { signal: controller.signal },
  );
  const ended = assert.rejects(waiting, OpenAI.APIUserAbortError);
  while ((await openRequests()) === 0) await sleep(20);
  controller.abort();
  await ended;
  return left();
}

async function eightAtOnce() {
  const one = async (seed) => told(await all(await chat({ seed, temperature: 1, stream: true })));
  const texts = await Promise.all([...Array(8).keys()].map(one));
  assert.equal(new Set(texts).size, 8);
  assert.equal(await one(3), texts[3]);
  return "eight streams, each as it is alone";
}

const checks = [
  models,
  chatAtOnce,
  chatStreamed,
  streamHelper,
  completions,
  logProbabilities,
  toolsCalled,
  toolRunner,
  formats,
  errors,
  leaving,
  eightAtOnce,
];

console.log(`version ${VERSION}`);
let failed = 0;
for (const check of checks) {
  const name = check.name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
  try {
    console.log(`ok ${name}: ${(await check()).replace(/\s+/g, " ")}`);
  } catch (error) {
    failed += 1;
    console.error(error);
    console.log(`BAD ${name}: ${`${error}`.replace(/\s+/g, " ").slice(0, 300)}`);
  }
}
process.exitCode = failed ? 1 : 0;
