// Statistics, decoding and formats of numbers.

const MISSING = "–";
export const isNumber = Number.isFinite;

export function mean(values) {
  const kept = values.filter(isNumber);
  return kept.length ? kept.reduce((a, b) => a + b, 0) / kept.length : null;
}

export const closest = (items, distance) =>
  items.reduce((a, b) => (distance(b) < distance(a) ? b : a), items[0]);

// Comparison for sorting; missing values come last in both directions.
export function compare(u, v, down) {
  if (!isNumber(u) || !isNumber(v)) return isNumber(v) - isNumber(u);
  return down ? v - u : u - v;
}

// Returns the minimum and maximum of nested lists.
export function spread(values) {
  const kept = values.flat().filter(isNumber);
  return [Math.min(...kept), Math.max(...kept)];
}

// Returns the quantile of ascending numbers.
export function quantile(sorted, share) {
  const at = share * (sorted.length - 1);
  const below = Math.floor(at);
  return sorted[below] + (at - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

// Decodes base64 numbers, each the upper `nbytes` of a float32.
export function decode(text, nbytes) {
  const kept = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const whole = new Uint8Array((kept.length / nbytes) * 4);
  for (let k = 0; k < kept.length; k += 1)
    whole[4 * Math.floor(k / nbytes) + 4 - nbytes + (k % nbytes)] = kept[k];
  return new Float32Array(whole.buffer);
}

export function plain(x, digits = 4) {
  if (!isNumber(x)) return MISSING;
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6))
    return x.toExponential(Math.min(2, digits - 1));
  return String(+x.toPrecision(digits));
}

function compact(x, units) {
  if (!isNumber(x)) return MISSING;
  const power = units.findIndex((_, k) => Math.abs(x) < 1000 ** (k + 1) || k === units.length - 1);
  const scaled = x / 1000 ** power;
  const digits = power === 0 || Math.abs(scaled) >= 100 ? 0 : Math.abs(scaled) >= 10 ? 1 : 2;
  return `${scaled.toFixed(digits)}${units[power]}`;
}

export const FORMAT = {
  share: (x) => (isNumber(x) ? `${(100 * x).toFixed(1)} %` : MISSING),
  loss: (x) => plain(x, 4),
  fixed: (x) => (x >= 1e-3 && x < 1e6 ? x.toPrecision(4) : plain(x, 4)), // aligned digits
  bytes: (x) => compact(x, [" B", " kB", " MB", " GB", " TB"]),
  round: (x) => (isNumber(x) ? Math.round(x).toLocaleString("en") : MISSING),
  seconds: (x) => (isNumber(x) ? `${plain(x)} s` : MISSING),
  count: (x) => compact(x, ["", " k", " M", " G", " T"]),
};
