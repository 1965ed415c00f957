// count FILE ROUNDS counts in a file under a lock; hold NAME waits until the lock is lost; use NAME does nothing under it.
import { readFileSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import { Lost, withLock } from '../../../../client/node/zamok.mjs';

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

async function use(name) {
  try {
    await withLock(name, { nodes, tokenFile: process.env.ZAMOK_TOKEN_FILE }, () => console.log('used'));
  } catch (error) {
    if (!(error instanceof Lost)) throw error;
    process.exitCode = 123;
  }
}

const [mode, ...args] = process.argv.slice(2);
await { count, hold, use }[mode](...args);
