/**
 * One `tidemark generate --json` in a process of its own, read line by line.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { Chunk, Completion, EngineEvents } from '../host/api.ts';
import { CommandError } from './command-error.ts';

/** What the child's lines told, with times on this process's clock. */
export interface ChildRun {
  /** From the start of the process to a loaded model. */
  loadMs: number;
  /** From the loaded model to the first token. */
  firstTokenMs: number;
  tokenIds: number[];
  text: string;
  /** The longest prefix reported durable before the process ended. */
  durableTokens: number;
  result: Completion | null;
  signal: NodeJS.Signals | null;
  exitCode: number | null;
}

export interface ChildPlan {
  args: readonly string[];
  /** Kill it (SIGKILL) as soon as it has sent this many tokens; absent: let it end. */
  killAfterTokens?: number;
  limitMs: number;
  /** Where to leave the process, so that an interrupt can end it. */
  onStart(child: ChildProcess): void;
  onProgress(text: string): void;
}

type Line =
  | ({ type: 'chunk' } & Chunk)
  | ({ type: 'durable' } & EngineEvents['durable'])
  | ({ type: 'progress' } & EngineEvents['progress'])
  | ({ type: 'result' } & Completion)
  | { type: 'ready' | 'load' | 'closed' | 'miss' | 'degraded' | 'recovered' | 'warning' | 'stall' };

const MAIN = fileURLToPath(new URL('./main.js', import.meta.url));

export async function runChild(plan: ChildPlan): Promise<ChildRun> {
  const child = spawn(process.execPath, [MAIN, 'generate', '--json', ...plan.args], { stdio: ['ignore', 'pipe', 'pipe'] });
  plan.onStart(child);
  const run: ChildRun = { loadMs: Number.NaN, firstTokenMs: Number.NaN, tokenIds: [], text: '', durableTokens: 0, result: null, signal: null, exitCode: null };
  const start = performance.now();
  let ready = Number.NaN;
  let said = '';
  let failure: { code: string; message: string } | null = null;
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  const read = (line: Line): void => {
    switch (line.type) {
      case 'ready':
        ready = performance.now();
        run.loadMs = ready - start;
        break;
      case 'progress':
        plan.onProgress(`${line.tokens} of ${line.totalTokens} tokens`);
        break;
      case 'durable':
        run.durableTokens = Math.max(run.durableTokens, line.tokenCount);
        break;
      case 'chunk':
        // Tokens still in the pipe of a killed process are left there; what it had called durable counts to the last line.
        if (child.killed) break;
        if (line.tokenIds.length > 0 && run.tokenIds.length === 0) run.firstTokenMs = performance.now() - ready;
        run.tokenIds.push(...line.tokenIds);
        run.text += line.text;
        if (plan.killAfterTokens !== undefined && run.tokenIds.length >= plan.killAfterTokens) child.kill('SIGKILL');
        break;
      case 'result':
        run.result = line;
        break;
    }
  };
  createInterface({ input: child.stdout }).on('line', (text) => {
    const line = parseLine(text);
    if (line !== null && 'error' in line) failure = line.error;
    else if (line !== null) read(line);
    // The kill may have cut the last line short.
    else if (!child.killed) failure = { code: 'DEMO_CHILD', message: `a generating process printed a line that is not JSON: ${text.slice(0, 200)}` };
  });
  const limit = setTimeout(() => child.kill('SIGKILL'), plan.limitMs);
  await new Promise<void>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => {
      run.exitCode = code;
      run.signal = signal;
      resolve();
    });
  }).finally(() => clearTimeout(limit));
  if (failure !== null) {
    const { code, message } = failure as { code: string; message: string };
    throw new CommandError(code, message);
  }
  if (Number.isNaN(run.firstTokenMs)) {
    const how = run.signal === null ? `with exit code ${run.exitCode}` : `by ${run.signal}`;
    throw new CommandError('DEMO_CHILD', `a generating process ended ${how} before its first token; it said: ${said.trim() || 'nothing'}`);
  }
  return run;
}

function parseLine(text: string): Line | { error: { code: string; message: string } } | null {
  try {
    return JSON.parse(text) as Line;
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}
