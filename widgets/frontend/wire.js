// The browser's copy of the runs. widgets/frontend/wire.py says how the bytes are laid out, widgets/runs/feed.py when they come.

function unpack(view) {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  // A view may begin at an odd address, where no Float32Array can: copy.
  const floats = new Float32Array(bytes.slice(4 + length).buffer);
  let start = 0;
  for (const line of head.lines) {
    line.points = floats.subarray(start, start + 3 * line.count);
    start += 3 * line.count;
  }
  return head;
}

// A line's points: x, y, and the mean of the point's bucket. `size` is how many records a bucket holds.
class Line {
  constructor() {
    this.x = [];
    this.y = [];
    this.mean = [];
    this.size = 2;
  }

  extend(points) {
    for (let i = 0; i < points.length; i += 3) {
      this.x.push(points[i]);
      this.y.push(points[i + 1]);
      this.mean.push(points[i + 2]);
    }
  }

  cut(count) {
    this.x.length = this.y.length = this.mean.length = Math.min(count, this.x.length);
  }

  // The points from low to high, and one more on each side, as in Feed.detail.
  between([low, high]) {
    const isNear = (_, i) => (this.x[i + 1] ?? Infinity) >= low && (this.x[i - 1] ?? -Infinity) <= high;
    const [x, y, mean] = [this.x, this.y, this.mean].map((values) => values.filter(isNear));
    return Object.assign(new Line(), { x, y, mean, size: this.size });
  }

  // Two neighbouring buckets become one: the lowest and the highest of four points stay, as in downsample.py.
  fold() {
    const groups = this.x.length >> 2;
    for (let g = 0; g < groups; g++) {
      let low = 4 * g, high = 4 * g, sum = 0, count = 0;
      for (let i = 4 * g; i < 4 * g + 4; i++) {
        if (this.y[i] < this.y[low]) low = i;
        if (this.y[i] > this.y[high]) high = i;
        if (!Number.isNaN(this.mean[i])) { sum += this.mean[i]; count++; }
      }
      const first = Math.min(low, high), second = Math.max(low, high);
      const kept = [[this.x[first], this.y[first]], [this.x[second], this.y[second]]];
      kept.forEach(([x, y], i) => {
        this.x[2 * g + i] = x;
        this.y[2 * g + i] = y;
        this.mean[2 * g + i] = sum / count;
      });
    }
    this.cut(2 * groups);
  }
}

class Store {
  constructor() {
    this.head = null;
    this.lines = new Map();
    this.detail = null;
    this.heard = Date.now(); // when the kernel last said anything
    this.cut = false; // whether the page was told that nothing more will come
    this.clock = 0; // how far the kernel's clock is ahead of ours, in seconds
  }

  hear() {
    this.heard = Date.now();
    this.cut = false;
  }

  // False when a message was missed: ask for a snapshot.
  apply(head) {
    if (head.kind === "detail") {
      const ends = new Map([...this.lines].map(([key, line]) => [key, line.x.at(-1)])); // how far the runs had come
      this.detail = { view: head.view, ends, lines: new Map(head.lines.map((line) => [line.key, this.read(line)])) };
      return true;
    }
    if (head.kind === "snapshot") {
      this.lines.clear();
      this.detail = null;
    } else if (!this.head || this.head.version !== head.base) {
      return false;
    }
    for (const line of head.lines) {
      const mine = this.lines.get(line.key) ?? new Line();
      for (let i = 0; i < line.fold; i++) mine.fold();
      mine.cut(line.keep);
      mine.extend(line.points);
      mine.size = line.size;
      this.lines.set(line.key, mine);
    }
    this.head = { ...this.head, ...head };
    this.clock = head.now - Date.now() / 1000;
    return true;
  }

  read(line) {
    const copy = new Line();
    copy.extend(line.points);
    copy.size = line.size;
    return copy;
  }

  // The finest that is known of a line for what is looked at.
  line(key, view) {
    const detail = this.detail;
    const fits = view && detail && detail.view[0] === view[0] && detail.view[1] === view[1];
    const known = (fits && detail.lines.get(key)) || this.lines.get(key);
    return view ? known?.between(view) : known;
  }
}
