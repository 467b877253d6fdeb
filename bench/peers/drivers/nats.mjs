// NATS for bench/peers/nats.py: node nats.mjs LIBRARIES PORT
import { createRequire } from 'node:module';
import { BODY, CALL, received, serve } from './lines.mjs';

const [libraries, port] = process.argv.slice(2);
const require = createRequire(`${libraries}/`);
const { connect, headers } = require('@nats-io/transport-node');
const { jetstream, jetstreamManager, AckPolicy } = require('@nats-io/jetstream');

const TARGET = 'bench.out';
const connection = await connect({ port: Number(port) });
const manager = await jetstreamManager(connection);
const js = jetstream(connection);
const version = connection.info.version;
await manager.streams.add({
  name: 'bench',
  subjects: ['bench.>'],
  allow_msg_schedules: true,
  allow_direct: true,
});
await manager.consumers.add('bench', {
  durable_name: 'bench',
  filter_subject: TARGET,
  ack_policy: AckPolicy.All,
});

// A schedule is the last message of a subject: each message needs one of its own.
let number = 0;

async function add(count, dueMsOf) {
  let waiting = [];
  for (let index = 0; index < count; index += 1) {
    const dueMs = dueMsOf(index, Date.now());
    const sent = headers();
    sent.set('Nats-Schedule', `@at ${new Date(dueMs).toISOString()}`);
    sent.set('Nats-Schedule-Target', TARGET);
    sent.set('due', String(dueMs));
    number += 1;
    waiting.push(js.publish(`bench.in.${number}`, BODY, { headers: sent, timeout: 60_000 }));
    if (waiting.length === CALL) {
      await Promise.all(waiting);
      waiting = [];
    }
  }
  await Promise.all(waiting);
}

async function receive() {
  const consumer = await js.consumers.get('bench', 'bench');
  const messages = await consumer.consume({ max_messages: CALL });
  let count = 0;
  for await (const message of messages) {
    received(Number(message.headers.get('due')));
    count += 1;
    if (count % 100 === 0) message.ack();
  }
}

receive().catch((error) => {
  console.error(error);
  process.exit(1);
});
await serve({ version }, add);
