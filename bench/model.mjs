/**
 * Prefill and decode of tide-5m in float32 through the public API, against mlx-lm: as pip installs it, and with the
 * OpenBLAS and the threads that our own addon uses. All in one run, interleaved.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { createEngine } from '../dist/index.js';
import { Peer } from './lib/peer.mjs';
import { openblasPreload, peerPackages } from './lib/peer-setup.mjs';
import { median, round, seededTokens, summarize, verdict } from './lib/ratio.mjs';

const MODEL = fileURLToPath(new URL('../models/tide-5m', import.meta.url));
const PROMPT = 1024;
const CHUNK = 512;
const DECODE = 64;
const FLOORS = { pip: { prefill: 3.5, decode: 1.2 }, openblas: { prefill: 1, decode: 1 } };
/** OpenBLAS threads go on spinning for a moment after their last product; the next one to run shall not pay for it. */
const SETTLE_MS = 60;
const CACHE_ROUNDS = 5;

export async function run({ pairs, log }) {
  const count = pairs ?? 20;
  const threads = Math.min(8, cpus().length);
  const site = peerPackages(log);
  const preload = openblasPreload(log);
  const peers = { pip: new Peer({ site, preload: null, threads, model: MODEL, compute: 'float32' }) };
  if (preload.path !== null) peers.openblas = new Peer({ site, preload: preload.path, threads, model: MODEL, compute: 'float32' });
  const cacheDir = mkdtempSync(join(tmpdir(), 'tidemark-bench-model-'));
  const common = { model: MODEL, device: 'cpu', compute: 'float32', prefillChunk: CHUNK, threads };
  const engine = await createEngine({ ...common, cache: false });
  try {
    const info = { loadAverage: [loadavg()], threads, peers: {}, notes: preload.path === null ? [preload.why] : [] };
    for (const [name, peer] of Object.entries(peers)) info.peers[name] = await peer.ready(preload.openblas);
    if (info.peers.openblas?.openblasMapped === false || info.peers.pip.openblasMapped)
      throw new Error(`the peers have the wrong BLAS, no comparison is possible: ${JSON.stringify(info.peers)}`);
    const found = await interleave({ engine, peers, count, log });
    info.loadAverage.push(loadavg());
    info.cache = await cacheOnAgainstOff({ engine, common, cacheDir, log });
    info.tokensAgree = found.agree;
    return { results: Object.keys(peers).flatMap((name) => ['prefill', 'decode'].map((phase) => resultOf(name, phase, found))), info };
  } finally {
    for (const peer of Object.values(peers)) peer.close();
    await engine.close();
    rmSync(cacheDir, { recursive: true, force: true });
  }
}

/** Rounds of (ours, peer) for each peer, order alternating; ours against ours of the same round shows the scatter. */
async function interleave({ engine, peers, count, log }) {
  const names = Object.keys(peers);
  const found = { ours: names.map(() => []), agree: {}, self: { prefill: [], decode: [] } };
  for (const name of names) found[name] = [];
  const tokens = seededTokens(PROMPT, 1);
  const job = { tokens, chunk: CHUNK, decode: DECODE };
  const reference = await ours(engine, tokens);
  for (const name of names) found.agree[name] = commonPrefix(reference.tokens, (await theirs(peers[name], job)).tokens);
  for (let i = 0; i < count; i++) {
    for (const [k, name] of names.entries()) {
      const first = (i + k) % 2 === 0;
      if (first) found.ours[k].push(await ours(engine, tokens));
      found[name].push(await theirs(peers[name], job));
      if (!first) found.ours[k].push(await ours(engine, tokens));
    }
    const [a, b] = names.length > 1 ? [found.ours[0][i], found.ours[1][i]] : [found.ours[0][i], await ours(engine, tokens)];
    for (const phase of ['prefill', 'decode']) found.self[phase].push(b[phase] / a[phase]);
    const speeds = names.map(
      (name, k) =>
        `${name} ${(found[name][i].prefill / found.ours[k][i].prefill).toFixed(2)}x ${(found[name][i].decode / found.ours[k][i].decode).toFixed(2)}x`,
    );
    log(`pair ${i + 1} of ${count}: ${speeds.join(', ')}`);
  }
  found.names = names;
  return found;
}

function resultOf(name, phase, found) {
  const mine = found.ours[found.names.indexOf(name)];
  const other = found[name];
  const speedups = mine.map((run, i) => other[i][phase] / run[phase]);
  const tokens = phase === 'prefill' ? PROMPT : DECODE;
  const perSecond = (runs, pick) => round((1000 * tokens) / pick(runs.map((run) => run[phase])));
  const fastest = (values) => Math.min(...values);
  return {
    ...verdict(
      `${phase}, speed against mlx-lm ${name === 'pip' ? 'as pip installs it' : 'with the same OpenBLAS'}`,
      speedups,
      found.self[phase],
      { atLeast: FLOORS[name][phase] },
      'times',
    ),
    tokensPerSecond: { tidemark: perSecond(mine, median), peer: perSecond(other, median) },
    fastestTokensPerSecond: { tidemark: perSecond(mine, fastest), peer: perSecond(other, fastest) },
    cpuSecondsOfBothPhases: { tidemark: round(median(mine.map((run) => run.cpu))), peer: round(median(other.map((run) => run.cpu))) },
  };
}

/** Milliseconds. The first token comes out of prefill; what the API itself takes on the way counts as decode. */
async function ours(engine, tokens, extra = {}) {
  await sleep(SETTLE_MS);
  const cpu = process.cpuUsage();
  const start = performance.now();
  const done = await engine.complete({ tokens, maxTokens: DECODE + 1, ignoreEos: true, temperature: 0, repetitionPenalty: 1, ...extra });
  const total = performance.now() - start;
  const used = process.cpuUsage(cpu);
  if (done.tokenIds.length !== DECODE + 1) throw new Error(`the engine made ${done.tokenIds.length} tokens, not ${DECODE + 1}`);
  const prefill = done.timings.firstTokenMs;
  return { prefill, decode: total - prefill, cpu: (used.user + used.system) / 1e6, tokens: done.tokenIds };
}

async function theirs(peer, job) {
  await sleep(SETTLE_MS);
  const { prefill_s, decode_s, cpu_s, tokens } = await peer.ask(job);
  if (tokens.length !== DECODE + 1) throw new Error(`mlx-lm made ${tokens.length} tokens, not ${DECODE + 1}`);
  return { prefill: prefill_s * 1000, decode: decode_s * 1000, cpu: cpu_s, tokens };
}

/** For information: the same prompts with every boundary stored, against without a cache. New tokens each round, so that nothing is stored yet. */
async function cacheOnAgainstOff({ engine, common, cacheDir, log }) {
  log('cache on against off');
  const cached = await createEngine({ ...common, cache: { dir: cacheDir } });
  try {
    await ours(cached, seededTokens(PROMPT, 99), { noRestore: true });
    const ratios = { prefill: [], decode: [] };
    for (let i = 0; i < CACHE_ROUNDS; i++) {
      const tokens = seededTokens(PROMPT, 100 + i);
      const off = i % 2 === 0 ? await ours(engine, tokens) : null;
      const on = await ours(cached, tokens, { noRestore: true });
      await cached.flush();
      const without = off ?? (await ours(engine, tokens));
      for (const phase of ['prefill', 'decode']) ratios[phase].push(on[phase] / without[phase]);
    }
    return { timeOnOverOff: { prefill: summarize(ratios.prefill), decode: summarize(ratios.decode) }, boundaries: cached.stats().boundaries };
  } finally {
    await cached.close();
  }
}

function commonPrefix(a, b) {
  const differs = a.findIndex((token, i) => token !== b[i]);
  return { equal: differs < 0 ? a.length : differs, of: a.length };
}
