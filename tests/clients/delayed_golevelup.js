// With golevelup's module for NestJS; see delayed_pika.py.
require('reflect-metadata');
const { AmqpConnection } = require('@golevelup/nestjs-rabbitmq');

const show = (row) => console.log(JSON.stringify({ ...row, atMs: Date.now() }));
const logger = { log() {}, debug() {}, warn: console.error, error: console.error };

async function main(url, name, ...delays) {
  const connection = new AmqpConnection({
    uri: url,
    logger,
    connectionInitOptions: { wait: true, timeout: 60000 },
    exchanges: [
      {
        name,
        type: 'x-delayed-message',
        options: { durable: true, arguments: { 'x-delayed-type': 'topic' } },
      },
    ],
  });
  await connection.init();
  let left = delays.length;
  let done;
  const all = new Promise((resolve) => (done = resolve));
  await connection.createSubscriber(
    async (body, message) => {
      const { fields, properties } = message;
      show({
        received: properties.messageId,
        exchange: fields.exchange,
        key: fields.routingKey,
        delay: properties.headers['x-delay'] ?? null,
        own: properties.headers.own,
        body: body.text,
      });
      if (--left === 0) done();
    },
    { exchange: name, routingKey: 'a.*', queue: name },
    'receive',
  );
  for (const [number, delay] of delays.entries()) {
    const headers = { own: 'kept', ...(delay === '-' ? {} : { 'x-delay': Number(delay) }) };
    show({ sent: `m${number}` });
    const body = { text: `body m${number}` };
    await connection.publish(name, 'a.b', body, { headers, messageId: `m${number}` });
  }
  await all;
  await connection.close();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
