// Publishes what it reads, with confirms: one JSON object a line, {key, body (base64), options}.
// node amqplib_publish.js URL EXCHANGE
const amqplib = require('amqplib');
const readline = require('readline');

async function main(url, exchange) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { key, body, options } = JSON.parse(line);
    channel.publish(exchange, key, Buffer.from(body, 'base64'), options);
  }
  await channel.waitForConfirms();
  await connection.close();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
