/** Tidemark: an MLX inference engine for Node.js whose KV cache lives on SSD. */
export type * from './host/api.ts';
export { createEngine } from './host/create-engine.ts';
export {
  DROP_REASONS,
  type DropReason,
  ERROR_CODES,
  type ErrorCode,
  MISS_REASONS,
  type MissReason,
  StreamAffinityError,
  TidemarkError,
} from './shared/errors.ts';
