/** Sampling options of a request: checked, and completed from the model's generation_config.json. */
import { invalidArgument, type JsonObject } from '../models/checks.ts';

export interface SamplingInput {
  temperature?: number | undefined;
  topK?: number | undefined;
  topP?: number | undefined;
  minP?: number | undefined;
  repetitionPenalty?: number | undefined;
  repetitionContext?: number | undefined;
  seed?: number | undefined;
}

/** Complete and valid. `temperature` 0 is greedy; `topK` 0, `topP` 1, `minP` 0 and `repetitionPenalty` 1 are off. */
export interface SamplingParams {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly repetitionContext: number;
  readonly seed: number;
}

interface Rule {
  readonly expected: string;
  readonly holds: (value: number) => boolean;
}

const between = (low: number, high: number) => (value: number) => value >= low && value <= high;
const RULES: Readonly<Record<keyof SamplingParams, Rule>> = {
  temperature: { expected: 'a number from 0 to 100', holds: between(0, 100) },
  topK: { expected: 'an integer from 0 (off) upwards', holds: (v) => Number.isSafeInteger(v) && v >= 0 },
  topP: { expected: 'a number above 0 and up to 1 (off)', holds: (v) => v > 0 && v <= 1 },
  minP: { expected: 'a number from 0 (off) to 1', holds: between(0, 1) },
  repetitionPenalty: { expected: 'a number above 0 and up to 100 (1 is off)', holds: (v) => v > 0 && v <= 100 },
  repetitionContext: { expected: 'an integer from 0 to 1048576', holds: (v) => Number.isInteger(v) && v >= 0 && v <= 1_048_576 },
  seed: { expected: 'an integer from 0 to 2^53 - 1', holds: (v) => Number.isSafeInteger(v) && v >= 0 },
};

/** @throws {TidemarkError} INVALID_ARGUMENT naming the first wrong field */
export function validateSampling(input: SamplingInput): void {
  for (const [field, rule] of Object.entries(RULES)) {
    const value: unknown = input[field as keyof SamplingInput];
    if (value === undefined) continue;
    if (typeof value !== 'number' || !rule.holds(value)) throw invalidArgument(field, rule.expected, value);
  }
}

/**
 * A request's options over the model's defaults over "off".
 *
 * A default in generation_config.json that is not valid here (other tools allow more) is passed over: a model file must
 * not be able to make every request fail.
 *
 * @param randomSeed used when the request gives no seed
 */
export function resolveSampling(input: SamplingInput, generationConfig: JsonObject, randomSeed: number): SamplingParams {
  validateSampling(input);
  const model = (key: string, field: keyof SamplingParams): number | undefined => {
    const value = generationConfig[key];
    return typeof value === 'number' && RULES[field].holds(value) ? value : undefined;
  };
  const modelTemperature = generationConfig.do_sample === false ? 0 : model('temperature', 'temperature');
  return {
    temperature: input.temperature ?? modelTemperature ?? 0,
    topK: input.topK ?? model('top_k', 'topK') ?? 0,
    topP: input.topP ?? model('top_p', 'topP') ?? 1,
    minP: input.minP ?? model('min_p', 'minP') ?? 0,
    repetitionPenalty: input.repetitionPenalty ?? model('repetition_penalty', 'repetitionPenalty') ?? 1,
    repetitionContext: input.repetitionContext ?? 64,
    seed: input.seed ?? randomSeed,
  };
}
