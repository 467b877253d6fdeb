// AMQP 1.0: publishes what it reads, and waits until the broker accepted it all. One JSON object a
// line, {body (base64), text, ...rest of the message}; text is sent as a value, body as data.
// node rhea_publish.js HOST PORT ADDRESS
const rhea = require('rhea');
const readline = require('readline');

async function main(host, port, address) {
  const messages = [];
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { body, text, delayMs, dueMs, ...message } = JSON.parse(line);
    message.body =
      text === undefined ? rhea.message.data_section(Buffer.from(body, 'base64')) : text;
    message.message_annotations = { ...message.message_annotations };
    if (delayMs !== undefined) {
      message.message_annotations['x-opt-delivery-delay'] = rhea.types.wrap_ulong(delayMs);
    }
    if (dueMs !== undefined) {
      message.message_annotations['x-opt-delivery-time'] = rhea.types.wrap_timestamp(dueMs);
    }
    messages.push(message);
  }
  const connection = rhea.connect({
    host, port, username: 'guest', password: 'guest', reconnect: false,
  });
  const sender = connection.open_sender(address);
  let left = messages.length;
  sender.once('sendable', () => messages.forEach((message) => sender.send(message)));
  sender.on('accepted', () => {
    left -= 1;
    if (left === 0) connection.close();
  });
  const fail = (context) => {
    console.error(context.error || context.delivery.remote_state || context);
    process.exit(1);
  };
  for (const event of ['rejected', 'released', 'modified']) sender.on(event, fail);
  for (const event of ['sender_error', 'connection_error', 'disconnected']) {
    connection.on(event, (context) => left && fail(context));
  }
}

main(...process.argv.slice(2));
