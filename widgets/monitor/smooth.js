// An exponential mean whose half-life is a fraction of the line's records; a NaN stays and is left out. As widgets/runs/smooth.py.

function smooth(line, values, fraction) {
  const recordsAPoint = line.size === 2 ? 1 : line.size / 2;
  const halfLife = fraction * values.length * recordsAPoint;
  if (halfLife <= 0) return values;
  const keep = 0.5 ** (recordsAPoint / halfLife);
  let total = 0, weight = 0;
  return values.map((value) => {
    if (Number.isNaN(value)) return value;
    total = keep * total + value;
    weight = keep * weight + 1;
    return total / weight;
  });
}
