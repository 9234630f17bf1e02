// A worker that receives jobs by HTTP push, in JSON. Node 20, no packages.
//
//   WINDLASS_TOKEN=… node push_worker.mjs

import { createHmac, timingSafeEqual } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

// What a task returns is the result. `stop` is aborted when the job is cancelled or lost.
const tasks = {
  greet: ({ name }) => `hello, ${name}`,
  count: async ({ to }, stop) => {
    for (let n = 1; n <= to; n++) await sleep(100, undefined, { signal: stop });
    return to;
  },
};
const quick = new Set(['greet']); // answered at once; the others are reported when they are done

const server = process.env.WINDLASS_SERVER ?? 'http://127.0.0.1:7717';
const base = `${server}/v1/${process.env.WINDLASS_TENANT ?? 'default'}`;
const running = new Map(); // id -> { token, stop }
let me;

async function ask(verb, path, body) {
  const headers = { authorization: `Bearer ${process.env.WINDLASS_TOKEN}`, 'content-type': 'application/json' };
  const response = await fetch(base + path, { method: verb, headers, body: body && JSON.stringify(body) });
  if (response.status === 204) return null;
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.detail), { status: response.status });
  return answer;
}

// Only the server knows the secret of the registration. An old request may be a replay.
function isFromServer(request, body) {
  const timestamp = request.headers['windlass-timestamp'] ?? '';
  const wanted = createHmac('sha256', me.secret).update(`${timestamp}.`).update(body).digest();
  const given = Buffer.from(request.headers['windlass-signature'] ?? '', 'hex');
  const isFresh = Math.abs(Date.now() / 1000 - Number(timestamp)) < 300;
  return isFresh && given.length === wanted.length && timingSafeEqual(given, wanted);
}

async function outcome({ job, payload }, stop) {
  try {
    return { outcome: 'ok', result: (await tasks[job.task](payload, stop)) ?? null };
  } catch (fault) {
    return { outcome: 'error', error: { type: fault.name, message: fault.message, traceback: fault.stack } };
  }
}

async function runAndTell(claimed) {
  const { id } = claimed.job;
  const stop = new AbortController();
  running.set(id, { token: claimed.token, stop });
  const ended = await outcome(claimed, stop.signal);
  running.delete(id);
  await ask('POST', `/workers/${me.worker}/finish`, [{ id, token: claimed.token, ...ended }]);
}

async function answer(request, body) {
  if (!isFromServer(request, body)) return [403];
  const claimed = JSON.parse(body);
  const { task } = claimed.job;
  if (!Object.hasOwn(tasks, task)) return [404];
  if (quick.has(task)) return [200, await outcome(claimed)];
  runAndTell(claimed).catch((fault) => console.error(fault.message));
  return [202];
}

const listener = createServer(async (request, response) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const [status, said] = await answer(request, Buffer.concat(pieces)).catch(() => [400]);
  response.writeHead(status, { 'content-type': 'application/json' }).end(said && JSON.stringify(said));
});

async function register(url) {
  const about = { name: 'node', pid: process.pid, slots: 4, tasks: Object.keys(tasks), url, format: 'json' };
  me = await ask('POST', '/workers', about);
  console.log(`registered as ${me.worker}`);
}

// A worker that does not renew within a lease counts as lost. The answer names the jobs to stop.
async function renew(url) {
  const jobs = [...running].map(([id, { token }]) => ({ id, token }));
  try {
    const { lost, orders } = await ask('POST', `/workers/${me.worker}/renew`, jobs);
    for (const id of [...lost, ...orders.map((order) => order.id)]) running.get(id)?.stop.abort();
  } catch (fault) {
    console.error(fault.message);
    if (fault.status === 404) await register(url).catch(() => {});
  }
}

listener.listen(Number(process.env.PORT ?? 0), '127.0.0.1', async () => {
  const url = process.env.WORKER_URL ?? `http://127.0.0.1:${listener.address().port}/jobs`;
  await register(url);
  const renewing = setInterval(() => renew(url), (me.lease * 1000) / 3);
  process.once('SIGTERM', async () => {
    clearInterval(renewing);
    await ask('DELETE', `/workers/${me.worker}`).catch(() => {});
    process.exit(0);
  });
});
