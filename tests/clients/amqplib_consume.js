// Prints what it receives: one JSON object a line. Ends after COUNT messages.
// node amqplib_consume.js URL QUEUE COUNT
const amqplib = require('amqplib');

async function main(url, queue, count) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  let left = Number(count);
  await channel.consume(queue, async ({ fields, properties, content }) => {
    const atMs = Date.now();
    const body = content.toString('base64');
    console.log(JSON.stringify({ atMs, key: fields.routingKey, properties, body }));
    channel.ack({ fields });
    left -= 1;
    if (left === 0) {
      await channel.close();
      await connection.close();
    }
  });
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
