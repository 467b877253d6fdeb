// With callbacks; see delayed_pika.py.
const amqplib = require('amqplib/callback_api');

const [url, name, ...delays] = process.argv.slice(2);
const show = (row) => console.log(JSON.stringify({ ...row, atMs: Date.now() }));

function must(then) {
  return (error, result) => {
    if (!error) return then(result);
    console.error(error);
    return process.exit(1);
  };
}

function send(channel) {
  delays.forEach((delay, number) => {
    const headers = { own: 'kept', ...(delay === '-' ? {} : { 'x-delay': Number(delay) }) };
    const options = { headers, messageId: `m${number}`, contentType: 'text/plain' };
    show({ sent: `m${number}` });
    channel.publish(name, 'a.b', Buffer.from(`body m${number}`), options);
  });
}

function receive(connection, channel) {
  let left = delays.length;
  channel.consume(name, ({ content, fields, properties }) => {
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
    if (--left === 0) channel.close(() => connection.close());
  });
}

amqplib.connect(
  url,
  must((connection) => {
    connection.createConfirmChannel(
      must((channel) => {
        channel.assertExchange(name, 'x-delayed-message', {
          arguments: { 'x-delayed-type': 'direct' },
        });
        channel.assertQueue(name);
        channel.bindQueue(
          name,
          name,
          'a.b',
          {},
          must(() => {
            send(channel);
            channel.waitForConfirms(must(() => receive(connection, channel)));
          }),
        );
      }),
    );
  }),
);
