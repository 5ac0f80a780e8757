#!/usr/bin/env node
console.log(require("path").basename("/a/b"))
