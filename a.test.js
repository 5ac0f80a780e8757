const { test } = require("node:test");
const assert = require("node:assert");
test("answer", () => assert.equal(require("fs").readFileSync("/app/answer.txt", "utf8").trim(), "42"));
