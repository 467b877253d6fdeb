// What the Node programs for bench/peers/driver.py share: words on stdin, JSON lines on stdout.
import { createInterface } from 'node:readline';

export const CALL = 1000;
export const DAY_MS = 86_400_000;
export const BODY = 'x'.repeat(100);

let expected = Infinity;
let lateMs = [];
let arrived;

/** Note the arrival of a message that was due at `dueMs`. */
export function received(dueMs) {
  const nowMs = performance.timeOrigin + performance.now();
  lateMs.push(nowMs - dueMs);
  if (lateMs.length === expected) arrived(nowMs);
}

function expecting(count) {
  expected = count;
  lateMs = [];
  return new Promise((resolve) => { arrived = resolve; });
}

/** Answer commands until stdin ends. add: (count, dueMsOf(number, nowMs)), done when all are stored. */
export async function serve(ready, add) {
  const commands = {
    async fill(count) {
      const beganMs = performance.now();
      await add(count, (_, nowMs) => nowMs + DAY_MS);
      return { seconds: (performance.now() - beganMs) / 1000 };
    },
    async burst(count, dueMs) {
      const last = expecting(count);
      await add(count, () => dueMs);
      const addedMs = Date.now();
      return { addedMs, seconds: (await last - dueMs) / 1000 };
    },
    async late(count, rate, firstMs) {
      const last = expecting(count);
      await add(count, (number) => Math.round(firstMs + (number * 1000) / rate));
      await last;
      return { lateMs };
    },
  };
  console.log(JSON.stringify(ready));
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, ...given] = line.split(' ');
    console.log(JSON.stringify(await commands[command](...given.map(Number))));
  }
  process.exit(0);
}
