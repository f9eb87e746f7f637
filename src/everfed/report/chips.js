// What is shown: a chip per line, or of a sweep one per method and one per value of each swept setting.

const redraw = []; // called whenever something is shown or hidden

function chip(text, picture, attributes, change) {
  const box = make("input", { type: "checkbox", checked: true, ...attributes, onchange: () => {
    change(box.checked);
    redraw.forEach((f) => f());
  } });
  return make("label", { class: "chip" }, box, picture, make("span", {}, text));
}

function toggles() {
  const host = byId("methods");
  if (data.sweeps.length) facets(host);
  else data.lines.forEach((line, i) => host.append(chip(line.label, key(i), { "data-line": i }, (on) => { visible[i] = on; })));
}

// A line is shown if its method and all its values are.
function facets(host) {
  const hidden = new Set();
  const methods = [...new Set(data.lines.map((line) => line.method))];
  const value = (line, name) => (name === null ? line.method : line.settings[name]);
  const refresh = () => data.lines.forEach((line, i) => {
    visible[i] = ![null, ...data.sweeps.map((sweep) => sweep.key)].some((name) => hidden.has(`${name}=${value(line, name)}`));
  });
  const row = (title, name, chips) => host.append(make("div", { class: "facet" }, make("span", { class: "facet-name" }, title), ...chips.map(([text, own, picture]) =>
    chip(text, picture, { "data-facet": `${name ?? "method"}=${own}` }, (on) => {
      if (on) hidden.delete(`${name}=${own}`);
      else hidden.add(`${name}=${own}`);
      refresh();
    }))));
  host.querySelector("legend").textContent = "Runs shown";
  host.classList.add("facets");
  row("method", null, methods.map((method) => {
    const first = data.lines.findIndex((line) => line.method === method);
    return [data.lines[first].title, method, key(first)];
  }));
  for (const sweep of data.sweeps) row(sweep.key, sweep.key, sweep.own.map((own) => [own, own, null]));
}
