// BullMQ for bench/peers/bullmq.py: node bullmq.mjs LIBRARIES PORT QUEUE CONCURRENCY
import { createRequire } from 'node:module';
import { BODY, CALL, received, serve } from './lines.mjs';

const [libraries, port, name, concurrency] = process.argv.slice(2);
const { Queue, Worker } = createRequire(`${libraries}/`)('bullmq');

// Finished jobs are removed, which is the least work for Redis.
const defaultJobOptions = { removeOnComplete: true, removeOnFail: true };

const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const queue = new Queue(name, { connection, defaultJobOptions });
const worker = new Worker(name, async (job) => received(job.data.dueMs), {
  connection,
  concurrency: Number(concurrency),
});
for (const source of [queue, worker]) {
  source.on('error', (error) => {
    console.error(error);
    process.exit(1);
  });
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

await Promise.all([queue.waitUntilReady(), worker.waitUntilReady()]);
await serve({ version: process.versions.node }, add);
