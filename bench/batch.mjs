/**
 * Eight answers of tide-5m in float32 at once, through the public API: against the same eight in turn, and against mlx-lm's own
 * batch generation, as pip installs it and with the OpenBLAS and the threads of our own addon. All in one run, interleaved.
 *
 * A figure is the time of the whole job, prompts included; they are short, of different lengths, so that it is decoding that counts.
 */
import { cpus, loadavg } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { createEngine } from '../dist/index.js';
import { Peer } from './lib/peer.mjs';
import { openblasPreload, peerPackages } from './lib/peer-setup.mjs';
import { median, round, seededTokens, verdict } from './lib/ratio.mjs';

const MODEL = fileURLToPath(new URL('../models/tide-5m', import.meta.url));
const ROWS = 8;
const DECODE = 128;
const PROMPTS = Array.from({ length: ROWS }, (_, i) => seededTokens(8 + 6 * i, 10 + i));
const FLOORS = { turn: 2, pip: 1, openblas: 1 };
/** OpenBLAS threads go on spinning for a moment after their last product; the next one to run shall not pay for it. */
const SETTLE_MS = 60;

export async function run({ pairs, log }) {
  const count = pairs ?? 15;
  const threads = Math.min(8, cpus().length);
  const site = peerPackages(log);
  const preload = openblasPreload(log);
  const peers = { pip: new Peer({ site, preload: null, threads, model: MODEL, compute: 'float32' }) };
  if (preload.path !== null) peers.openblas = new Peer({ site, preload: preload.path, threads, model: MODEL, compute: 'float32' });
  const engine = await createEngine({ model: MODEL, device: 'cpu', compute: 'float32', threads, maxNumSeqs: ROWS, cache: false });
  try {
    const info = { rows: ROWS, tokensPerRow: DECODE, loadAverage: [loadavg()], threads, peers: {}, notes: preload.path === null ? [preload.why] : [] };
    for (const [name, peer] of Object.entries(peers)) info.peers[name] = await peer.ready(preload.openblas);
    if (info.peers.openblas?.openblasMapped === false || info.peers.pip.openblasMapped)
      throw new Error(`the peers have the wrong BLAS, no comparison is possible: ${JSON.stringify(info.peers)}`);
    const ways = {
      ours: () => together(engine),
      turn: () => inTurn(engine),
      ...Object.fromEntries(Object.entries(peers).map(([name, peer]) => [name, () => theirs(peer)])),
    };
    info.tokensAgree = await agreement(ways);
    const found = await interleave(ways, count, log);
    info.loadAverage.push(loadavg());
    return { results: Object.keys(ways).flatMap((name) => (name === 'ours' ? [] : [resultOf(name, found)])), info };
  } finally {
    for (const peer of Object.values(peers)) peer.close();
    await engine.close();
  }
}

/** Each round has every way once, ours also at its end; the order alternates. */
async function interleave(ways, count, log) {
  const names = Object.keys(ways);
  const found = Object.fromEntries([...names, 'again'].map((name) => [name, []]));
  for (let i = 0; i < count; i++) {
    for (const name of i % 2 === 0 ? names : names.toReversed()) found[name].push((await ways[name]()).ms);
    found.again.push((await ways.ours()).ms);
    const speeds = names.slice(1).map((name) => `${name} ${(found[name][i] / found.ours[i]).toFixed(2)}x`);
    log(`round ${i + 1} of ${count}: ${speeds.join(', ')}`);
  }
  return found;
}

const TITLES = {
  turn: 'eight at once, speed against eight in turn',
  pip: 'eight at once, speed against mlx-lm batch generation as pip installs it',
  openblas: 'eight at once, speed against mlx-lm batch generation with the same OpenBLAS',
};

function resultOf(name, found) {
  const speedups = found.ours.map((ms, i) => found[name][i] / ms);
  const self = found.ours.map((ms, i) => found.again[i] / ms);
  const perSecond = (values) => round((1000 * ROWS * DECODE) / median(values));
  return {
    ...verdict(TITLES[name], speedups, self, { atLeast: FLOORS[name] }, 'times'),
    tokensPerSecond: { together: perSecond(found.ours), other: perSecond(found[name]) },
  };
}

/** How many tokens of each row are those of the row in turn; rounding may part them. */
async function agreement(ways) {
  const reference = (await ways.turn()).tokens;
  const found = {};
  for (const [name, way] of Object.entries(ways)) {
    const { tokens } = await way();
    found[name] = tokens.map((row, i) => {
      const differs = row.findIndex((token, k) => token !== reference[i][k]);
      return differs < 0 ? row.length : differs;
    });
  }
  return found;
}

const request = (tokens) => ({ tokens, maxTokens: DECODE, ignoreEos: true, temperature: 0, repetitionPenalty: 1 });

async function together(engine) {
  await sleep(SETTLE_MS);
  const start = performance.now();
  const done = await Promise.all(PROMPTS.map((tokens) => engine.complete(request(tokens))));
  return checked(
    performance.now() - start,
    done.map(({ tokenIds }) => tokenIds),
  );
}

async function inTurn(engine) {
  await sleep(SETTLE_MS);
  const start = performance.now();
  const tokens = [];
  for (const prompt of PROMPTS) tokens.push((await engine.complete(request(prompt))).tokenIds);
  return checked(performance.now() - start, tokens);
}

async function theirs(peer) {
  await sleep(SETTLE_MS);
  const { wall_s, tokens } = await peer.ask({ prompts: PROMPTS, decode: DECODE });
  return checked(wall_s * 1000, tokens);
}

function checked(ms, tokens) {
  const short = tokens.find((row) => row.length !== DECODE);
  if (short !== undefined) throw new Error(`a row has ${short.length} tokens, not ${DECODE}`);
  return { ms, tokens };
}
