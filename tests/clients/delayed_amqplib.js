// With promises; see delayed_pika.py.
const amqplib = require('amqplib');

const show = (row) => console.log(JSON.stringify({ ...row, atMs: Date.now() }));

async function main(url, name, ...delays) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange(name, 'x-delayed-message', {
    durable: true,
    arguments: { 'x-delayed-type': 'topic' },
  });
  await channel.assertQueue(name);
  await channel.bindQueue(name, name, 'a.*');
  delays.forEach((delay, number) => {
    const headers = { own: 'kept', ...(delay === '-' ? {} : { 'x-delay': Number(delay) }) };
    const options = { headers, messageId: `m${number}`, contentType: 'text/plain' };
    show({ sent: `m${number}` });
    channel.publish(name, 'a.b', Buffer.from(`body m${number}`), { ...options, persistent: true });
  });
  await channel.waitForConfirms();
  let left = delays.length;
  await channel.consume(name, ({ content, fields, properties }) => {
    show({
      received: properties.messageId,
      exchange: fields.exchange,
      key: fields.routingKey,
      delay: properties.headers['x-delay'] ?? null,
      own: properties.headers.own,
      type: properties.contentType,
      body: content.toString(),
    });
    channel.ack({ fields });
    if (--left === 0) channel.close().then(() => connection.close());
  });
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
