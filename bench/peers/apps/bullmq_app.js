// BullMQ on Redis: `work`, or `produce TASK one|bulk|paced N PER_SECOND` as producer.py does. Finished jobs are removed.
"use strict";

const fs = require("node:fs");
const { Queue, Worker } = require("bullmq");

const BATCH = 1000;
const SIZE = 100;
const NAP = 50;
const address = new URL(process.env.BENCH_URL);
const connection = { host: address.hostname, port: Number(address.port), maxRetriesPerRequest: null };
const safe = "BENCH_SAFE" in process.env;

const argument = (first) => `${first} `.padEnd(SIZE, "x");
const first = (text) => text.split(" ", 1)[0];
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const nanoseconds = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6));

function work() {
  const notes = fs.openSync(process.env.BENCH_NOTES, "a");
  const tasks = {
    noop: () => {},
    stamp: (text) => fs.writeSync(notes, `${first(text)} ${nanoseconds()}\n`),
    nap: async (text) => {
      await sleep(NAP);
      fs.writeSync(notes, `${first(text)}\n`);
    },
  };
  const run = async (job) => {
    await tasks[job.name](job.data.text);
  };
  const leases = safe ? { lockDuration: 3000, stalledInterval: 1000, maxStalledCount: 5 } : {};
  const options = { connection, concurrency: Number(process.env.BENCH_SLOTS), removeOnComplete: { count: 0 }, ...leases };
  const worker = new Worker("bench", run, options);
  worker.on("error", (fault) => console.error(String(fault)));
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

async function produce(task, how, number, rate) {
  const queue = new Queue("bench", { connection });
  const send = (text, what = task) => queue.add(what, { text });
  await send(how === "paced" ? argument(nanoseconds()) : argument(0), how === "paced" ? "noop" : task);
  const begun = performance.now();
  if (how === "bulk") {
    for (let start = 1; start < number; start += BATCH) {
      const length = Math.min(BATCH, number - start);
      await queue.addBulk(Array.from({ length }, (_, at) => ({ name: task, data: { text: argument(start + at) } })));
    }
  } else {
    const wanted = how === "paced" ? number + 1 : number;
    for (let count = 1; count < wanted; count += 1) {
      if (how === "paced") await sleep(begun + (1000 * count) / rate - performance.now());
      await send(argument(how === "paced" ? nanoseconds() : count));
    }
  }
  console.log(JSON.stringify({ jobs: number, seconds: (performance.now() - begun) / 1000 }));
  await queue.close();
}

const [, , what, task, how, number, rate] = process.argv;
if (what === "work") work();
else produce(task, how, Number(number), Number(rate)).then(() => process.exit(0));
