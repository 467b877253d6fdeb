// Runs BullMQ for bench/peers/bullmq.py: reads a JSON command on each line, answers with a JSON line.
// node bullmq.mjs LIBRARIES PORT QUEUE CONCURRENCY
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [libraries, port, name, concurrency] = process.argv.slice(2);
const { Queue, Worker } = createRequire(`${libraries}/`)('bullmq');

const CALL = 1000;
const DAY_MS = 86_400_000;
const BODY = 'x'.repeat(100);
// Finished jobs are removed, which is the least work for Redis.
const defaultJobOptions = { removeOnComplete: true, removeOnFail: true };

const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const queue = new Queue(name, { connection, defaultJobOptions });

let expected = Infinity;
let lateMs = [];
let arrived;

async function received(job) {
  const nowMs = performance.timeOrigin + performance.now();
  lateMs.push(nowMs - job.data.dueMs);
  if (lateMs.length === expected) arrived(nowMs);
}

const worker = new Worker(name, received, { connection, concurrency: Number(concurrency) });
for (const source of [queue, worker]) {
  source.on('error', (error) => {
    console.error(error);
    process.exit(1);
  });
}

function expecting(count) {
  expected = count;
  lateMs = [];
  return new Promise((resolve) => { arrived = resolve; });
}

async function add(count, dueMsOf) {
  for (let first = 0; first < count; first += CALL) {
    const timestamp = Date.now();
    const jobs = [];
    for (let number = first; number < Math.min(count, first + CALL); number += 1) {
      const dueMs = dueMsOf(number, timestamp);
      const opts = { timestamp, delay: Math.max(0, dueMs - timestamp) };
      jobs.push({ name: 'job', data: { body: BODY, dueMs }, opts });
    }
    await queue.addBulk(jobs);
  }
}

const commands = {
  async fill({ count }) {
    const beganMs = performance.now();
    await add(count, (_, nowMs) => nowMs + DAY_MS);
    return { seconds: (performance.now() - beganMs) / 1000 };
  },
  async burst({ count, dueMs }) {
    const last = expecting(count);
    await add(count, () => dueMs);
    const addedMs = Date.now();
    return { addedMs, seconds: (await last - dueMs) / 1000 };
  },
  async late({ count, rate, firstMs }) {
    const last = expecting(count);
    await add(count, (number) => Math.round(firstMs + (number * 1000) / rate));
    await last;
    return { lateMs };
  },
};

await Promise.all([queue.waitUntilReady(), worker.waitUntilReady()]);
console.log(JSON.stringify({ node: process.versions.node }));
for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...given } = JSON.parse(line);
  console.log(JSON.stringify(await commands[command](given)));
}
process.exit(0);
