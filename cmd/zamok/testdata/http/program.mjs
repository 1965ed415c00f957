// count FILE ROUNDS counts in a file under a lock; hold NAME waits until the lock is lost; use NAME does nothing under it;
// believe NAME MAX_HOLD says for how long it held the lock to be its own.
import { readFileSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { Lost, withLock } from '../../../../client/javascript/zamok.mjs';

const rate = Number(process.env.ZAMOK_TEST_RATE ?? 1); // of this program's clock
const right = performance.now.bind(performance);
performance.now = () => right() * rate;

const nodes = process.env.ZAMOK_HTTP.split(' ');

async function count(file, rounds) {
  for (let i = 0; i < Number(rounds); i++) {
    await withLock('counter', { nodes, wait: 60, meta: 'a test' }, async (lock) => {
      const [soFar, last] = readFileSync(file, 'utf8').split(' ');
      if (lock.token <= BigInt(last)) throw new Error(`the token ${lock.token} follows ${last}`);
      await new Promise(setImmediate);
      lock.check();
      writeFileSync(file, `${Number(soFar) + 1} ${lock.token}\n`);
    });
  }
}

async function hold(name) {
  try {
    await withLock(name, { nodes, ttl: 10 }, async (lock) => {
      console.log('holding');
      await once(lock.signal, 'abort');
      console.log('lost');
    });
    throw new Error('withLock did not say that the lock was lost');
  } catch (error) {
    if (!(error instanceof Lost)) throw error;
    process.exitCode = 123;
  }
}

async function believe(name, max_hold) {
  let believed;
  try {
    await withLock(name, { nodes, wait: 60, ttl: 10, max_hold }, async (lock) => {
      console.log('holding');
      for (;;) {
        const before = Date.now();
        lock.check();
        believed = before;
        await sleep(2);
      }
    });
  } catch (error) {
    if (!(error instanceof Lost)) throw error;
    console.log(`believed ${believed / 1000}`);
  }
}

async function use(name, fields) {
  try {
    await withLock(name, { nodes, tokenFile: process.env.ZAMOK_TOKEN_FILE, ...fields }, () => console.log('used'));
  } catch (error) {
    if (!(error instanceof Lost)) throw error;
    process.exitCode = 123;
  }
}

// As use, and waits for a second at most.
const brief = (name) => use(name, { ttl: 1, wait: 0 });

// A mistake.
const text = (name) => withLock(name, { nodes: nodes.join(' ') }, () => {});

const [mode, ...args] = process.argv.slice(2);
await { count, hold, believe, use, brief, text }[mode](...args);
