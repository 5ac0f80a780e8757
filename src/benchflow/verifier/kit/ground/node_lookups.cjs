// Resolves what the verifier's own files require as the environment was built: modules of the agent are found last.
// `/run/verifier-ground/changes` says what is the agent's; files of the agent resolve as they always do.
"use strict";
const fs = require("fs");
const path = require("path");
const Module = require("module");

let added, changed;

function read() {
  added = new Set();
  changed = new Set();
  let text = "";
  try {
    text = fs.readFileSync("/run/verifier-ground/changes", "latin1");
  } catch (error) {
    return;
  }
  for (const record of text.split("\0")) {
    const place = Buffer.from(record.slice(record.indexOf(" ") + 1), "latin1").toString();
    if (record.startsWith("added ")) added.add(place);
    else if (record.startsWith("changed ") || record.startsWith("setting ")) changed.add(place);
  }
}

function isOfAgent(place) {
  let found = changed.has(place);
  for (let folder = place; !found && folder !== "/" && folder !== "."; folder = path.dirname(folder)) {
    found = added.has(folder);
  }
  return found && !isOfVerifier(place);
}

// A copy of one of the verifier's files, in whatever way and over whatever file it was made.
function isOfVerifier(place) {
  const names = place.split("/");
  for (let count = names.length - 1; count > 0; count--) {
    const own = path.join("/verifier", ...names.slice(count));
    try {
      if (fs.readFileSync(own).equals(fs.readFileSync(place))) return true;
    } catch (error) {
      continue;
    }
  }
  return false;
}

function scopeIsOfAgent(file) {
  for (let folder = path.dirname(file); ; folder = path.dirname(folder)) {
    const place = path.join(folder, "package.json");
    if (fs.existsSync(place)) return isOfAgent(place);
    if (folder === path.dirname(folder)) return false;
  }
}

// A file of the verifier's that was copied beside the agent's is found before one of the agent's that is spelled shorter.
function beside(request, asking) {
  const place = path.resolve(path.dirname(asking), request);
  return Object.keys(Module._extensions).map((end) => place + end).find((file) => fs.existsSync(file) && !isOfAgent(file));
}

const original = Module._resolveFilename;

Module._resolveFilename = function (request, parent, isMain, options) {
  // Code and options on the command line: they ask as from the current folder, which may be the agent's; they are not.
  const given = parent && /^(\[.*\]|<repl>|internal\/preload)$/.test(parent.id);
  const asking = parent && (given ? process.cwd() + "/." : parent.filename);
  if (isMain || options || typeof request !== "string" || /^(\/|#|node:)/.test(request)) return original.apply(this, arguments);
  if (Module.builtinModules.includes(request)) return original.apply(this, arguments);
  if (added === undefined) read();
  if (added.size + changed.size === 0 || (asking && !given && isOfAgent(asking))) return original.apply(this, arguments);
  if (/^\.\.?($|\/)/.test(request)) {
    const found = original.apply(this, arguments);
    return (asking && isOfAgent(found) && beside(request, asking)) || found;
  }
  const name = request.split("/").slice(0, request[0] === "@" ? 2 : 1).join("/");
  const places = Module._resolveLookupPaths(request, parent) || [];
  const suspect = places.filter((place) => isOfAgent(path.join(place, name)));
  if (suspect.length === 0 && !(asking && scopeIsOfAgent(asking))) return original.apply(this, arguments);
  const found = Module._findPath(request, places.filter((place) => !suspect.includes(place)), false);
  return found && !isOfAgent(found) ? found : original.apply(this, arguments);
};

// Modules that the environment loads at the start of Node, where a `package.json` of the agent could redirect that.
const folder = new Module("internal/preload", null);
for (const name of (process.env.VERIFIER_GROUND_REQUIRE || "").split(" ").filter(Boolean)) {
  folder.paths = Module._nodeModulePaths(process.cwd());
  (path.isAbsolute(name) ? module : folder).require(name);
}
