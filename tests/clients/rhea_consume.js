// AMQP 1.0: prints what it receives, one JSON object a line. Ends after COUNT messages.
// node rhea_consume.js HOST PORT ADDRESS COUNT
const rhea = require('rhea');

function shown(body) {
  if (body && body.typecode === 0x75) return { body: body.content.toString('base64') };
  return { text: body };
}

function main(host, port, address, count) {
  const connection = rhea.connect({
    host, port, username: 'guest', password: 'guest', reconnect: false,
  });
  let left = Number(count);
  connection.open_receiver(address);
  connection.on('message', ({ message }) => {
    const atMs = Date.now();
    const { body, ...rest } = message;
    console.log(JSON.stringify({ atMs, ...shown(body), ...rest }));
    left -= 1;
    if (left === 0) connection.close();
  });
  for (const event of ['receiver_error', 'connection_error', 'disconnected']) {
    connection.on(event, (context) => {
      if (left === 0) return;
      console.error(context.error || context);
      process.exit(1);
    });
  }
}

main(...process.argv.slice(2));
