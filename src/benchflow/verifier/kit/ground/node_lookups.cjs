// Resolves what the verifier's own files require as the environment was built: modules of the agent are found last.
// `/run/verifier-ground/changes` says what is the agent's; files of the agent resolve as they always do.
"use strict";
const fs = require("fs");
const path = require("path");
const url = require("url");
const Module = require("module");

let added, changed, hasModules;

function read() {
  added = new Set();
  changed = new Set();
  hasModules = false;
  let text = "";
  try {
    text = fs.readFileSync("/run/verifier-ground/changes", "latin1");
  } catch (error) {
    return;
  }
  for (const record of text.split("\0")) {
    const place = Buffer.from(record.slice(record.indexOf(" ") + 1), "latin1").toString();
    if (record.startsWith("modules ")) hasModules = true;
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
  if (isMain || options || typeof request !== "string" || /^(#|node:)/.test(request)) return original.apply(this, arguments);
  // A `package.json` can give a path another meaning.
  if (path.isAbsolute(request)) return Module._findPath(request, [], false) || original.apply(this, arguments);
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

// Where an ES module of others would find a package that the agent did not add, if it would find one of the agent.
function parentOfBuilt(request, parent, found) {
  if (!/^file:/.test(parent || "") || !/^file:/.test(found) || /^([./#]|[a-z]+:)/.test(request)) return undefined;
  const asking = url.fileURLToPath(parent);
  if (added === undefined) read();
  if (isOfAgent(asking) || !isOfAgent(url.fileURLToPath(found))) return undefined;
  const name = request.split("/").slice(0, request[0] === "@" ? 2 : 1).join("/");
  for (let folder = path.dirname(asking); ; folder = path.dirname(folder)) {
    const place = path.join(folder, "node_modules", name);
    if (fs.existsSync(place) && !isOfAgent(place)) return url.pathToFileURL(path.join(folder, "node_modules", "x.mjs")).href;
    if (folder === path.dirname(folder)) return undefined;
  }
}

function resolveImport(request, context, next) {
  const found = next(request, context);
  const parentURL = parentOfBuilt(request, context.parentURL, found.url);
  return parentURL ? next(request, { ...context, parentURL }) : found;
}

module.exports = { parentOfBuilt };
if (require("worker_threads").isMainThread && (Module.registerHooks || Module.register)) {
  read();
  if (hasModules && Module.registerHooks) Module.registerHooks({ resolve: resolveImport });
  else if (hasModules) Module.register(url.pathToFileURL(path.join(__dirname, "imports.mjs")).href);
}

// Keys of a `package.json` that npm and Node define. What other programs read there configures them, as files do.
const KEPT = new Set(
  ("name version description keywords homepage bugs license author contributors funding files exports imports main module " +
    "browser bin man directories repository scripts config dependencies devDependencies peerDependencies " +
    "peerDependenciesMeta bundleDependencies bundledDependencies optionalDependencies overrides resolutions engines os " +
    "cpu private publishConfig workspaces type types typings packageManager sideEffects").split(" ")
);

// Whether an installed program reads a file for itself: a test that reads one is on the stack.
function isForProgram() {
  const lines = (new Error().stack || "").split("\n").map((line) => /(?:at |\(|file:\/\/)(\/.*?)(:\d+)*\)?$/.exec(line));
  const others = lines.filter(Boolean).map((found) => found[1]).filter((place) => place !== __filename);
  return others.length > 0 && others.every((place) => /\/(node_modules|nodejs)\//.test(place) && !isOfAgent(place));
}

function settled(file, data) {
  const place = path.resolve(file instanceof URL ? file.pathname : String(file));
  try {
    const found = JSON.parse(data.toString());
    const builtIn = "/run/verifier-ground/pristine" + fs.realpathSync(place);
    const built = fs.existsSync(builtIn) ? JSON.parse(native(builtIn, "utf8")) : {};
    const own = Object.entries(found).filter(([key]) => KEPT.has(key));
    const others = Object.entries(built).filter(([key]) => !KEPT.has(key));
    const text = JSON.stringify(Object.fromEntries([...own, ...others]));
    return typeof data === "string" ? text : Buffer.from(text);
  } catch (error) {
    return data;
  }
}

function isSetting(file) {
  if (!(typeof file === "string" || file instanceof URL) || !/(^|\/)package\.json$/.test(String(file))) return false;
  if (added === undefined) read();
  return isOfAgent(path.resolve(file instanceof URL ? file.pathname : file)) && isForProgram();
}

const native = fs.readFileSync;
const later = fs.readFile;
const promised = fs.promises.readFile;
fs.readFileSync = function (file, ...rest) {
  const data = native.call(this, file, ...rest);
  return isSetting(file) ? settled(file, data) : data;
};
fs.readFile = function (file, ...rest) {
  const done = rest.pop();
  if (typeof done !== "function" || !isSetting(file)) return later.call(this, file, ...rest, done);
  return later.call(this, file, ...rest, (error, data) => done(error, error ? data : settled(file, data)));
};
fs.promises.readFile = async function (file, ...rest) {
  const wanted = isSetting(file);
  const data = await promised.call(this, file, ...rest);
  return wanted ? settled(file, data) : data;
};
Module.syncBuiltinESMExports && Module.syncBuiltinESMExports();

// Modules that the environment loads at the start of Node, where a `package.json` of the agent could redirect that.
const folder = new Module("internal/preload", null);
for (const name of (process.env.VERIFIER_GROUND_REQUIRE || "").split(" ").filter(Boolean)) {
  folder.paths = Module._nodeModulePaths(process.cwd());
  (path.isAbsolute(name) ? module : folder).require(name);
}
