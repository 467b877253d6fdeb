// Adds jobs of BullMQ that are pending: delayed ones, one that waits for a retry, and what cannot be
// taken over. Usage: REDIS_URL PREFIX
const { FlowProducer, Queue, Worker } = require('bullmq');

const [url, prefix] = process.argv.slice(2);
const { hostname: host, port, pathname } = new URL(url);
const at = { connection: { host, port, db: pathname.slice(1) || 0 }, prefix };
const HOUR = 3600e3;

async function main() {
  const mails = new Queue('mails', at);
  const retries = new Queue('retries', at);
  const flow = new FlowProducer(at);
  await mails.add('welcome', { to: 'ä' }, { delay: HOUR });
  await mails.add('half', '\ud83d', { delay: 2 * HOUR, jobId: 'own-id', priority: 5 });
  await mails.add('now', {});
  await mails.upsertJobScheduler('yearly', { pattern: '0 0 1 1 *' }, { name: 'yearly' });
  const children = [{ name: 'child', queueName: 'mails', opts: { delay: HOUR } }];
  await flow.add({ name: 'parent', queueName: 'mails', children });
  const worker = new Worker('retries', () => Promise.reject(new Error('no')), at);
  await retries.add('fails', { k: 1 }, { attempts: 5, backoff: { type: 'fixed', delay: HOUR } });
  await new Promise((resolve) => worker.on('failed', resolve));
  await Promise.all([worker.close(), mails.close(), retries.close(), flow.close()]);
}

main();
