// Loaded by Node under `python -m tests.suites --delayed`: every exchange is a delayed one.
const path = require('node:path');

try {
  const args = require(path.join(process.cwd(), 'lib', 'api_args.js'));
  const declare = args.assertExchange;
  args.assertExchange = (...given) => {
    const fields = declare(...given);
    if (fields.exchange && ['direct', 'fanout', 'headers', 'topic'].includes(fields.type)) {
      fields.arguments = { ...Object.fromEntries(entries(fields.arguments)), 'x-delayed-type': fields.type };
      fields.type = 'x-delayed-message';
    }
    return fields;
  };
} catch (error) {
  if (error.code !== 'MODULE_NOT_FOUND') throw error;
}

function* entries(table) {
  for (const name in table) yield [name, table[name]]; // those of the prototype, too
}
