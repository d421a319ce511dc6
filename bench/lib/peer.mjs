/** One persistent Python child: a line of JSON in, a line of JSON out. */
import { spawn } from 'node:child_process';
import { readFileSync, realpathSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const script = fileURLToPath(new URL('../peer/mlx_lm_peer.py', import.meta.url));

export class Peer {
  #child;
  #lines;
  #said = '';

  /** `preload`: a library that libmlx's BLAS calls are to find first, or null. */
  constructor({ site, preload, threads, model, compute }) {
    const env = { ...process.env, PYTHONPATH: site, PYTHONNOUSERSITE: '1', TOKENIZERS_PARALLELISM: 'false', TRANSFORMERS_VERBOSITY: 'error' };
    delete env.LD_PRELOAD;
    if (preload !== null) Object.assign(env, { LD_PRELOAD: preload, OPENBLAS_NUM_THREADS: String(threads) });
    this.#child = spawn('python3', [script, model, compute], { env, stdio: ['pipe', 'pipe', 'pipe'] });
    this.#child.stderr.setEncoding('utf8').on('data', (text) => {
      this.#said = (this.#said + text).slice(-2000);
    });
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
    this.#child.on('error', () => undefined); // told by the line that never comes
  }

  /** What the peer says of itself once the model is loaded, and whether it has mapped the OpenBLAS of `openblas` (numpy brings one of its own). */
  async ready(openblas) {
    const hello = await this.#line();
    return { ...hello, openblasMapped: openblas !== null && readFileSync(`/proc/${this.#child.pid}/maps`, 'utf8').includes(realpathSync(openblas)) };
  }

  async ask(job) {
    this.#child.stdin.write(`${JSON.stringify(job)}\n`);
    return this.#line();
  }

  close() {
    this.#child.stdin.end();
    this.#child.kill();
  }

  async #line() {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error(`The mlx-lm peer ended: ${this.#said.trim() || 'it said nothing'}`);
    return JSON.parse(value);
  }
}
