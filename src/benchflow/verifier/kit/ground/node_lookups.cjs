// Resolves what the verifier's own files require as the environment was built: modules of the agent are found last.
// `/run/verifier-ground/changes` says what is the agent's; files of the agent resolve as they always do.
"use strict";
const fs = require("fs");
const path = require("path");
const url = require("url");
const Module = require("module");

// Another program stands in the place of Node, which runs under a name of ours in the same folder.
const renamed = /^\.verifier-ground-[0-9a-f]+-(.+)$/.exec(path.basename(process.execPath));
if (renamed) {
  process.execPath = path.join(path.dirname(process.execPath), renamed[1]);
  if (renamed[0] === path.basename(process.argv[0] || "")) process.argv[0] = process.execPath;
}

const native = fs.readFileSync;
let added, changed, hasModules, laid;

function read() {
  added = new Set();
  changed = new Set();
  hasModules = false;
  laid = Infinity;
  let text = "";
  try {
    laid = fs.statSync("/run/verifier-ground/changes").ctimeMs;
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

// Whether a path came there while the verifier works, and so perhaps out of an archive of the agent's.
function isNew(place) {
  if (/^\/(verifier|tests|run\/verifier-ground)\//.test(place)) return false;
  try {
    return fs.statSync(place).ctimeMs > laid && !isOfVerifier(place);
  } catch (error) {
    return false;
  }
}

const isDoubtful = (place) => isOfAgent(place) || isNew(place);

// Packages that were unpacked resolve among themselves as they always do.
const isOwnBusiness = (asking) => isOfAgent(asking) || (asking.includes("/node_modules/") && isNew(asking));

// A copy of one of the verifier's files, wherever it is and over whatever file it was made: it was touched since.
function isOfVerifier(place) {
  try {
    const found = fs.statSync(place);
    if (!found.isFile() || found.ctimeMs <= laid) return /^\/verifier\//.test(fs.realpathSync(place));
    if (ofVerifier === undefined) ofVerifier = filesOfVerifier();
    return (ofVerifier.get(found.size) || []).some((file) => native(file).equals(native(place)));
  } catch (error) {
    return false;
  }
}

let ofVerifier;

// The files of the verifier, by size; found when something is in doubt.
function filesOfVerifier() {
  const found = new Map([[0, []]]);
  const add = (place) => {
    try {
      const file = fs.statSync(place);
      if (file.isDirectory() && !fs.lstatSync(place).isSymbolicLink()) {
        fs.readdirSync(place).forEach((name) => add(path.join(place, name)));
      } else if (file.isFile() && file.size > 0) {
        found.set(file.size, found.get(file.size) || []);
        found.get(file.size).push(place);
      }
    } catch (error) {
      return; // leads nowhere, or is not for this user, who could not copy it
    }
  };
  add("/verifier");
  return found;
}

// Whether a file was written while the verifier works, beside one that the agent left and nobody touched since.
function isWrittenBeside(file, other) {
  const found = fs.statSync(file);
  return found.mtimeMs > laid && found.ctimeMs > laid && fs.statSync(other).ctimeMs <= laid;
}

// A file that the verifier put beside the agent's is found before one of the agent's that is spelled shorter.
function beside(request, asking, other) {
  const place = path.resolve(path.dirname(asking), request);
  const files = Object.keys(Module._extensions).map((end) => place + end).filter((file) => fs.existsSync(file));
  return files.find((file) => !isDoubtful(file) || isWrittenBeside(file, other));
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
  if (added.size + changed.size === 0 || (asking && !given && isOwnBusiness(asking))) return original.apply(this, arguments);
  let found, failure;
  try {
    found = original.apply(this, arguments);
    if (!isDoubtful(found)) return found;
  } catch (error) {
    failure = error; // perhaps of a `package.json` of the agent's
  }
  const own = /^\.\.?($|\/)/.test(request) ? asking && found && beside(request, asking, found) : inPlaces(request, parent);
  if (!own && failure) throw failure;
  return own || found;
};

// The first package of a name on the path that is neither the agent's nor new.
function inPlaces(request, parent) {
  for (const place of Module._resolveLookupPaths(request, parent) || []) {
    const found = Module._findPath(request, [place], false);
    if (found && !isDoubtful(found)) return found;
  }
  return undefined;
}

// Where an ES module of others would find a package that the agent did not add, if it would find one of the agent.
function parentOfBuilt(request, parent, found) {
  if (!/^file:/.test(parent || "") || !/^file:/.test(found) || /^([./#]|[a-z]+:)/.test(request)) return undefined;
  const asking = url.fileURLToPath(parent);
  if (added === undefined) read();
  if (isOwnBusiness(asking) || !isDoubtful(url.fileURLToPath(found))) return undefined;
  const name = request.split("/").slice(0, request[0] === "@" ? 2 : 1).join("/");
  for (let folder = path.dirname(asking); ; folder = path.dirname(folder)) {
    const place = path.join(folder, "node_modules", name);
    if (fs.existsSync(place) && !isDoubtful(place)) return url.pathToFileURL(path.join(folder, "node_modules", "x.mjs")).href;
    if (folder === path.dirname(folder)) return undefined;
  }
}

function resolveImport(request, context, next) {
  const found = next(request, context);
  const parentURL = parentOfBuilt(request, context.parentURL, found.url);
  return parentURL ? next(request, { ...context, parentURL }) : found;
}

// Whether packages came to a folder or one above it while the verifier works.
function hasNewModules(folder) {
  const above = path.dirname(folder);
  return isNew(path.join(folder, "node_modules")) || (above !== folder && hasNewModules(above));
}

module.exports = { parentOfBuilt };
if (require("worker_threads").isMainThread && (Module.registerHooks || Module.register)) {
  read();
  const needed = hasModules || [process.cwd(), path.dirname(path.resolve(process.argv[1] || "."))].some(hasNewModules);
  if (needed && Module.registerHooks) Module.registerHooks({ resolve: resolveImport });
  else if (needed) Module.register(url.pathToFileURL(path.join(__dirname, "imports.mjs")).href);
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
