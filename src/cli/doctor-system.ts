/**
 * What `doctor` finds out without MLX and without a cache folder.
 */
import { loadNativeCore, nativeCoreProblem } from '../shared/native-core.ts';
import type { Finding } from './doctor.ts';

const LEAST_NODE: readonly [major: number, minor: number] = [20, 17];

export function checkNode(version: string): Finding {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major > LEAST_NODE[0] || (major === LEAST_NODE[0] && minor >= LEAST_NODE[1])) return { name: 'node', status: 'ok', found: version };
  return { name: 'node', status: 'missing', found: version, advice: `install Node.js ${LEAST_NODE.join('.')} or later` };
}

export function checkPlatform(platform: string, arch: string): Finding {
  const found = `${platform} ${arch}`;
  const supported = (platform === 'linux' && (arch === 'x64' || arch === 'arm64')) || (platform === 'darwin' && arch === 'arm64');
  if (supported) return { name: 'platform', status: 'ok', found };
  return {
    name: 'platform',
    status: 'missing',
    found,
    advice: 'MLX runs on Linux (x64, arm64) and on Apple Silicon; tidemark/store and tidemark/sync work here',
  };
}

export function checkCore(): Finding {
  const name = 'native core';
  if (loadNativeCore() !== null) return { name, status: 'ok', found: 'loaded' };
  const problem = nativeCoreProblem() ?? 'not loaded';
  return {
    name,
    status: 'missing',
    found: 'not there',
    advice: `without it no cache folder can be locked for writing: ${problem}`,
    details: { problem },
  };
}

export function checkEnvironment(env: Readonly<Record<string, string | undefined>>): Finding[] {
  const value = env.MLX_METAL_FAST_SYNCH;
  if (value === undefined || value === '' || value === '0') return [];
  return [
    {
      name: 'MLX_METAL_FAST_SYNCH',
      status: 'warning',
      found: value,
      advice: 'unset it: fast fences of MLX can wait for ever when work crosses streams; Tidemark makes no such work, other code in the process may',
    },
  ];
}
