import { runLoop } from './loop.mjs';

export default function run(init) {
  runLoop('store', 'store-worker', init);
}
