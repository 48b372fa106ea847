// Loads a page into a frame of each width and writes down what is wrong with it there; `page` and `widths` are given.
const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);

function named(element) {
  return `${element.localName}.${element.className} "${element.textContent.trim().slice(0, 40)}"`;
}

// The page does not scroll sideways, and nothing sticks out of it, unless it lies in a box that scrolls.
function wide(root, width) {
  const found = root.scrollWidth > width ? [`the page is ${root.scrollWidth} wide`] : [];
  const visit = (element) => {
    if (!element.checkVisibility()) return;
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > width + 1 || box.left < -1)) found.push(named(element));
    else if (!scrolls(element)) for (const child of element.children) visit(child);
  };
  visit(root.querySelector("body"));
  return found;
}

function luminance(rgb) {
  const parts = rgb.map((part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}

function colour(text) {
  const parts = text.match(/[\d.]+/g).map(Number);
  return parts.length < 4 || parts[3] ? parts.slice(0, 3) : null;
}

// Words can be read on what lies behind them: contrast of at least 4.5, WCAG's AA.
function pale(root, scheme) {
  root.style.colorScheme = scheme;
  const found = new Map();
  for (const element of root.querySelectorAll("body *")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || !element.checkVisibility()) continue;
    let behind = element;
    while (behind && !colour(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    const pair = [getComputedStyle(element).color, behind ? getComputedStyle(behind).backgroundColor : "rgb(255, 255, 255)"];
    if (found.has(pair.join())) continue;
    const [low, high] = pair.map((text) => luminance(colour(text))).sort((a, b) => a - b);
    found.set(pair.join(), (high + 0.05) / (low + 0.05) < 4.5 ? `${pair.join(" on ")}, ${named(element)}` : null);
  }
  return [...found.values()].filter(Boolean);
}

function measure(frame, width) {
  const document = frame.contentDocument;
  const root = document.documentElement;
  const folded = [...document.querySelectorAll("details:not([open])")];
  const found = { folded: wide(root, width) };
  // A link to a line in the middle of a folded file shows it, with nothing over it such as the line that names the file.
  const lines = folded.filter((box) => box.matches(".file")).at(-1)?.querySelectorAll("a[id]") ?? [];
  const line = lines[lines.length >> 1];
  if (line) {
    frame.contentWindow.location.hash = "#" + line.id;
    const at = line.getBoundingClientRect();
    const seen = document.elementFromPoint((at.left + at.right) / 2, (at.top + at.bottom) / 2);
    found.unfolding = seen === line ? [] : [line.id];
  }
  for (const box of folded) box.open = true;
  found.unfolded = wide(root, width);
  const targets = [...document.querySelectorAll('a[href^="#"]')].map((link) => decodeURIComponent(link.hash.slice(1)));
  found.links = targets.filter((id) => !document.getElementById(id));
  found.formulas = [...document.querySelectorAll("math")]
    .filter((math) => !math.getBoundingClientRect().width || math.textContent.includes("\\")).map(named);
  found.errors = [...document.querySelectorAll(".math-core-error")].map(named);
  found.loaded = frame.contentWindow.performance.getEntriesByType("resource").map((entry) => entry.name);
  if (width === widths[0]) {
    found.light = pale(root, "light");
    found.dark = pale(root, "dark");
  }
  return found;
}

const measures = {};
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 800px; border: 0`;
  frame.onload = () => {
    measures[width] = measure(frame, width);
    document.body.dataset.measured = JSON.stringify(measures);
  };
  frame.srcdoc = page;
  document.body.append(frame);
}
