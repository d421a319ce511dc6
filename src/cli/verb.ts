/**
 * What a verb of the command line is, and what it is given to work with.
 */
import type { Readable } from 'node:stream';
import type { Engine, EngineOptions } from '../host/api.ts';
import type { MissReason } from '../shared/errors.ts';
import type { Interrupts } from './interrupts.ts';
import type { OptionTable, Values } from './options.ts';
import type { Output } from './output.ts';

/** What `tidemark eval` asks of an engine for one prompt. */
export interface EvaluateRequest {
  ids: readonly number[];
  /** Tokens per prefill step; absent: the engine's own. */
  chunk?: number;
  /** How many greedy tokens to append; 0: none. */
  greedy: number;
}

export interface Evaluation {
  /** Most likely next token after the prompt. */
  argmax: number;
  logsumexp: number;
  /** The first 16 logits. */
  logitsHead: number[];
  greedy: number[];
  cachedTokens: number;
  missReason: MissReason | null;
}

/** Everything that needs MLX comes in through here, so that verbs which need none never load it. */
export interface Deps {
  createEngine(options: EngineOptions): Promise<Engine>;
  evaluateTokens(engine: Engine, request: EvaluateRequest): Promise<Evaluation>;
}

export interface Context {
  readonly deps: Deps;
  readonly out: Output;
  readonly stdin: Readable & { isTTY?: boolean };
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly interrupts: Interrupts;
  /** Ends the process without waiting for anything. */
  exitNow(code: number): void;
}

export interface Verb<T extends OptionTable = OptionTable> {
  /** As typed: 'generate', 'cache stat'. */
  readonly name: string;
  /** One line for the list of verbs. */
  readonly summary: string;
  /** Arguments without a dash: how the help writes them, and how many there may be. */
  readonly positionals?: { readonly text: string; readonly min: number; readonly max: number };
  readonly options: T;
  /** Paragraphs of the help below the options. */
  readonly notes?: readonly string[];
  /** Exit codes beside 0, 1, 2 and 130, or what 1 means here. */
  readonly exitCodes?: Readonly<Record<number, string>>;
  readonly examples: readonly string[];
  run(values: Values<T> & { json: boolean }, positionals: readonly string[], context: Context): Promise<number>;
}

/** A verb whose option types are known only to itself. */
export type AnyVerb = Omit<Verb, 'run'> & { run(values: never, positionals: readonly string[], context: Context): Promise<number> };

/** Gives `run` the types of its own option table. */
export function defineVerb<const T extends OptionTable>(verb: Verb<T>): AnyVerb {
  return verb as unknown as AnyVerb;
}
