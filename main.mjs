import { readFileSync } from "node:fs";
import { Worker } from "node:worker_threads";
import { two } from "./part.mjs";
if (two !== 2 || readFileSync("/app/answer.txt", "utf8").trim() !== "42") process.exit(1);
new Worker("require('path'); require('worker_threads').parentPort.postMessage(1)", { eval: true }).on("error", () => process.exit(2));
