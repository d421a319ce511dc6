/**
 * The engine as the command line sees it, loaded at first use: `cache`, `--help` and usage errors need no MLX.
 */
import type { Deps } from './verb.ts';

export const engineDeps: Deps = {
  createEngine: async (options) => (await import('../index.ts')).createEngine(options),
  evaluateTokens: async (engine, request) => (await import('../host/evaluate.ts')).evaluateTokens(engine, request),
};
